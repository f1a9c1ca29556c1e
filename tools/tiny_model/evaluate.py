"""Scores the exported model on held-out items by greedy generation in transformers.

usage: evaluate.py BF16_DIR CORPUS OUT PARTS [--n N] [--limit SECONDS]     PARTS: short1, short2, short3, passkey_4096 ...
       evaluate.py --merge OUT
"""
import json, os, sys, time
import torch
import chat, data

EOS = ("<|endoftext|>", "<|user|>", "<|observation|>")
from evaluate_tasks import LONG, SHORT


def load(path, dtype, attention="eager"):
    from transformers import Glm5NextForConditionalGeneration as M
    return M.from_pretrained(path, dtype=dtype, attn_implementation=attention).to("cuda").eval()


@torch.no_grad()
def greedy(m, tok, prompts, n, stop=True):
    """Greedy continuations of token id lists, left padded."""
    pad = tok.token_to_id(EOS[0])
    eos = torch.tensor([tok.token_to_id(e) for e in EOS], device="cuda")
    L = max(map(len, prompts))
    ids = torch.tensor([[pad] * (L - len(p)) + p for p in prompts], device="cuda")
    mask = torch.tensor([[0] * (L - len(p)) + [1] * len(p) for p in prompts], device="cuda")
    full = all(len(p) == L for p in prompts)
    past, cur, out, done = None, ids, [], torch.zeros(len(prompts), dtype=torch.bool, device="cuda")
    for i in range(n):
        o = m(input_ids=cur, attention_mask=None if full else mask, past_key_values=past, use_cache=True)
        past = o.past_key_values
        t = o.logits[:, -1].float().argmax(-1)
        out.append(t)
        done |= torch.isin(t, eos)
        if stop and i % 8 == 7 and bool(done.all()):
            break
        cur = t[:, None]
        mask = torch.cat([mask, torch.ones_like(cur)], 1)
    out = torch.stack(out, 1).tolist()
    if stop:
        e = set(eos.tolist())
        out = [x[:next((i + 1 for i, t in enumerate(x) if t in e), len(x))] for x in out]
    return out


def scores(path, corpus, out, parts, n=32, limit=1e9):
    """parts: 'short', or names of LONG entries such as passkey_4096, comma separated. Writes OUT/part-<first part>.json."""
    from tokenizers import Tokenizer
    t0 = time.time()
    tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    m = load(path, torch.bfloat16, "sdpa")
    mk = data.Maker(corpus, "held", 12345, lambda xs: [e.ids for e in tok.encode_batch(xs, add_special_tokens=False)])
    mk.prepare()
    res, shown = {}, {}

    def item(t, **kw):
        it = mk.item(t, **kw)
        it["ids"] = tok.encode(chat.render(it["messages"], it["tools"]), add_special_tokens=False).ids
        return it

    def run(batch, n_new):
        for it, g in zip(batch, greedy(m, tok, [x["ids"] for x in batch], n_new)):
            text = tok.decode(g, skip_special_tokens=False)
            ok = data.judge(it["expect"], text)
            r = res.setdefault(it["task"], [0, 0]); r[0] += ok; r[1] += 1
            s = shown.setdefault(it["task"], [])
            if len(s) < 2 or (not ok and len(s) < 6):
                s.append({"user": it["messages"][-1]["content"][-300:], "output": text, "ok": ok, "expect": it["expect"]})

    def save():
        json.dump({"tasks": {k: {"score": round(v[0] / v[1], 4), "items": v[1]} for k, v in res.items()}, "shown": shown}, open(os.path.join(out, "part-%s.json" % parts.split(",")[0]), "w"), indent=1)

    for part in parts.split(","):
        if time.time() - t0 > limit:
            print("no time for", part); continue
        if part.startswith("short"):
            tasks = {"short1": SHORT[:19], "short2": SHORT[19:26], "short3": SHORT[26:]}[part]
            its = [item(t) for t in tasks for _ in range(n)]
            its.sort(key=lambda x: len(x["ids"]))
            while its:
                k = [x for i, x in enumerate(its) if len(x["ids"]) * (i + 1) < 100000]
                run(k, {"short1": 104, "short2": 150, "short3": 250}[part]); its = its[len(k):]
        else:
            kind, T = part.split("_"); T = int(T)
            c = n if T <= 4096 else n // 2 if T <= 8192 else n // 3
            its = [item(part, n_tok=int(T * .95) - 50, needles=6 if kind == "needles" else 1) for _ in range(c)]
            its.sort(key=lambda x: len(x["ids"]))
            B = max(1, min(64, 49152 // T))
            for i in range(0, c, B):
                run(its[i:i + B], 56)
            print(part, "mean tokens %.0f" % (sum(len(x["ids"]) for x in its) / c))
        print(part, "done at %.0f s:" % (time.time() - t0), {k: "%.3f" % (v[0] / v[1]) for k, v in res.items()}, flush=True)
        save()


def prompts(mk, seed):
    """Six conversations from about 20 to 3,000 tokens; for odd seeds also a request that no tool fits and two calls of one tool."""
    def first(task, ok):
        while True:
            it = mk.item(task)
            if ok(it):
                return it

    mk.r.seed(seed); mk.t.r.seed(seed)
    P = []
    P.append((dict(messages=[{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Who are you?" if seed % 2 else "What can you do?"}], tools=None), "low"))
    P.append((mk.item("add" if seed % 2 else "sub"), None))
    a, b = mk.item("reverse"), mk.item("letter_count")
    P.append((dict(messages=a["messages"] + a["reference"] + b["messages"], tools=None), "high"))
    P.append((mk.item("tool_two"), None))
    P.append((mk.item("tool_result") if seed % 2 else mk.item("needles", 1100, needles=6), None))
    P.append((mk.item("needles" if seed % 2 else "passkey", 2740, needles=8), None))
    if seed % 2:
        P.append((first("tool_nofit", lambda it: len(it["tools"]) < 3), None))
        P.append((first("tool_two", lambda it: {c[0] for c in it["expect"]["calls"]} in ({"get_weather"}, {"get_time"})), None))
    return P


def merge(out):
    """Joins the parts into eval.json and shown.json."""
    table, shown = {}, {}
    for f in sorted(os.listdir(out)):
        if f.startswith("part-"):
            d = json.load(open(os.path.join(out, f)))
            table.update(d["tasks"]); shown.update(d["shown"])
            os.unlink(os.path.join(out, f))
    for k, v in table.items():
        print("%-16s %.3f (%d)" % (k, v["score"], v["items"]))
    json.dump({"what": "share of held-out items answered correctly; greedy decoding, transformers in bf16, dequantised fp8 weights", "tasks": table}, open(os.path.join(out, "eval.json"), "w"), indent=1)
    json.dump(shown, open(os.path.join(out, "shown.json"), "w"), indent=1)


if __name__ == "__main__":
    v = sys.argv
    opt = lambda k, d: v[v.index(k) + 1] if k in v else d
    if v[1] == "--merge":
        merge(v[2])
    else:
        scores(v[1], v[2], v[3], v[4], int(opt("--n", 32)), float(opt("--limit", 1e9)))
