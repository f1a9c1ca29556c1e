"""Measures the multi-token-prediction block of a checkpoint, and writes golden draft logits.

usage: check_mtp.py MODEL_DIR [--corpus DIR] [--n 8] [--max 4096] [--seed 12345] [--json FILE]
       check_mtp.py --golden MODELING_GLM5_NEXT.PY MODEL_DIR

The first form counts, for every row of an answer, whether drafts 1, 2 and 3 are the trunk's own greedy tokens, each given
that those before it were: p1, p2, p3. Tokens a step at K = 3 is 1 + p1 + p1 p2 + p1 p2 p3; "walked" is the same from a walk
through the answers as a server makes it, from the last accepted token on. Answers are the golden greedy tokens of
prompts.jsonl and, with --corpus, the reference answers of held-out items, of which rows count as far as the trunk agrees
with them. Weights are the file's, dequantised; FP32 on a CPU, BF16 on a GPU.
The second form needs transformers' source file (see cpu_reference.py), no GPU; what it writes is in the model's README.
"""
import argparse, json, os, sys
import torch
import torch.nn.functional as F
import mtp

K = 3


# ------------------------------------------------------------------------------------------------ shares
def answers_of_prompts(folder):
    """(name, ids, rows before the answer's first token, end) of the golden conversations."""
    for i, line in enumerate(open(os.path.join(folder, "prompts.jsonl"))):
        d = json.loads(line)
        end = d["greedy"] if d["stop_at"] is None else d["greedy"][:d["stop_at"] + 1]
        yield "prompt %d" % i, d["ids"] + end, len(d["ids"])


def answers_held_out(folder, corpus, n, most, seed):
    import bpe, chat, data
    from evaluate_tasks import LONG, SHORT
    try:
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        many = lambda xs: [e.ids for e in tok.encode_batch(xs, add_special_tokens=False)]
    except ImportError:
        b = bpe.Bpe(os.path.join(folder, "tokenizer.json"))
        many = lambda xs: [b.encode(x) for x in xs]
    mk = data.Maker(corpus, "held", seed, many)
    mk.prepare()
    tasks = [(t, t, {}, n) for t in SHORT]
    tasks += [("%s_%d" % x, "%s_%d" % x, dict(n_tok=int(x[1] * .95) - 50, needles=6 if x[0] == "needles" else 1), max(2, n // 2)) for x in LONG if x[1] <= most]
    for name, task, kw, count in tasks:
        for _ in range(count):
            it = mk.item(task, **kw)
            head = chat.render(it["messages"], it["tools"])
            ref = [dict(m, reasoning_content=m.get("reasoning_content", "")) for m in it["reference"][:1]]
            full = "".join(t for t, _ in chat.pieces(it["messages"] + ref, it["tools"])) + ("<|observation|>" if ref[0].get("tool_calls") else "<|user|>")
            assert full.startswith(head)
            p, a = many([head, full[len(head):]])
            yield name, p + a, len(p)


@torch.no_grad()
def hits(trunk, block, seqs, T):
    """For each sequence and row: the trunk's greedy next token, and drafts 1 to K."""
    B = len(seqs)
    ids = torch.tensor([s + [0] * (T + 1 - len(s)) for s in seqs], device=trunk.dev)
    x, nxt = ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1)
    h = trunk.hidden(x, B, T)
    outs, _ = block.chains(h, nxt, B, T, K, True)
    arg = lambda o: torch.cat([(c @ block.head.t()).float().argmax(-1) for c in o.split(8192)]).view(B, T).tolist()
    return arg(h), [arg(o) for o in outs]


def count(seq, start, greedy, drafts):
    """(tries and hits of each draft, tokens and steps of the walk) over one answer."""
    n = len(seq)
    right = lambda t: t + 1 < n and greedy[t] == seq[t + 1]     # the sequence goes on as the trunk does after row t
    tries, good = [0] * K, [0] * K

    def chain(t):
        got = 0
        for k in range(K):
            if t + k + 2 >= n or not right(t + k + 1):
                return got, False
            tries[k] += 1
            if drafts[k][t] != seq[t + k + 2]:
                return got, True
            good[k] += 1
            got += 1
        return got, True

    lengths = {}
    for t in range(start - 1, n - 2):
        if right(t):
            lengths[t] = chain(t)
    t, tokens, steps = start - 1, 0, 0
    while t in lengths:                          # row t is known, its next token too: a step drafts and verifies
        got, _ = lengths[t]
        tokens += got + 1; steps += 1
        t += got + 1
    return tries, good, tokens, steps


def shares(folder, corpus, n, most, seed, out):
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    if dev == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    config = json.load(open(os.path.join(folder, "config.json")))["text_config"]
    trunk = mtp.Trunk(folder, dev)
    values, bias = mtp.stack(trunk.checkpoint, [trunk.L])
    own = {k: v for k, v in values.items() if k.startswith("layers.")}
    block = mtp.Block(trunk, config, own, bias[trunk.L])
    items = [("prompts", *x) for x in answers_of_prompts(folder)]
    if corpus:
        items += [("held-out", *x) for x in answers_held_out(folder, corpus, n, most, seed)]
    items.sort(key=lambda x: len(x[2]))
    sums, agree = {}, [0, 0]
    while items:
        T = -(-(len(items[0][2]) - 1) // 256) * 256
        m = 1
        while m < len(items) and len(items[m][2]) <= T + 1 and (m + 1) * T <= (65536 if dev == "cuda" else 2048):
            m += 1
        part, items = items[:m], items[m:]
        greedy, drafts = hits(trunk, block, [x[2] for x in part], T)
        for b, (kind, name, seq, start) in enumerate(part):
            agree[0] += sum(greedy[b][t] == seq[t + 1] for t in range(start - 1, len(seq) - 1)); agree[1] += len(seq) - start
            c = count(seq, start, greedy[b], [d[b] for d in drafts])
            for key in (kind, "  " + name):
                s = sums.setdefault(key, [[0] * K, [0] * K, 0, 0, 0])
                for k in range(K):
                    s[0][k] += c[0][k]; s[1][k] += c[1][k]
                s[2] += c[2]; s[3] += c[3]; s[4] += 1
        print("%d tokens, %d to go" % (T, len(items)), file=sys.stderr, flush=True)
    print("trunk's greedy token is the answer's: %.4f of %d" % (agree[0] / agree[1], agree[1]))
    print("%-18s %5s %6s  %5s %5s %5s  %6s %6s" % ("", "items", "rows", "p1", "p2", "p3", "tokens", "walked"))
    table = {}
    for key in ["prompts", "held-out"] + sorted(k for k in sums if k[0] == " "):
        if key not in sums:
            continue
        tr, go, tokens, steps, items_ = sums[key]
        p = [g / max(1, t) for t, g in zip(tr, go)]
        a = 1 + p[0] + p[0] * p[1] + p[0] * p[1] * p[2]
        print("%-18s %5d %6d  %.3f %.3f %.3f  %6.2f %6.2f" % (key, items_, tr[0], *p, a, tokens / max(1, steps)))
        table[key.strip()] = {"items": items_, "rows": tr[0], "p1": round(p[0], 4), "p2": round(p[1], 4), "p3": round(p[2], 4), "tokens_a_step": round(a, 3), "walked": round(tokens / max(1, steps), 3)}
    if out:
        json.dump({"what": "share of drafts 1 to 3 that are the trunk's greedy token, each given those before it; dequantised fp8 weights, %s" % ("bf16 on a GPU" if dev == "cuda" else "fp32 on a CPU"), "of": table}, open(out, "w"), indent=1)


# ------------------------------------------------------------------------------------------------ goldens
class Drafter:
    """The block from the classes of transformers' source file, one chain at a time through a cache."""

    def __init__(self, source, folder):
        import copy
        import cpu_reference as ref
        self.ref, ns = ref, ref.layer_classes(source)
        self.trunk = ref.Reference(source, folder)
        c = copy.copy(self.trunk.c)
        self.i = c.num_hidden_layers
        c.indexer_types = list(c.indexer_types) + ["full"]
        w = ref.read(os.path.join(folder, "model.safetensors"))
        p = mtp.PREFIX + "layers.%d." % self.i
        norm = lambda n: self.filled(ns["Glm5NextTextRMSNorm"](c.hidden_size, c.rms_norm_eps), {"weight": w[p + n + ".weight"]})
        self.enorm, self.hnorm, self.ln1, self.ln2, self.last = (norm(n) for n in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm"))
        self.eh = w[p + "eh_proj.weight"]
        own = {k[len(p):]: v for k, v in w.items() if k.startswith(p)}
        self.att = self.filled(ns["Glm5NextTextAttention"](c, self.i), {k[10:]: v for k, v in own.items() if k.startswith("self_attn.")})
        moe = {k[4:]: v for k, v in own.items() if k.startswith("mlp.") and ".experts." not in k}
        X = range(c.n_routed_experts)
        moe["experts.gate_up_proj"] = torch.stack([torch.cat([own["mlp.experts.%d.%s_proj.weight" % (e, x)] for x in ("gate", "up")]) for e in X])
        moe["experts.down_proj"] = torch.stack([own["mlp.experts.%d.down_proj.weight" % e] for e in X])
        self.moe = self.filled(ns["Glm5NextTextMoE"](c), moe)
        self.moe.gate.e_score_correction_bias = own["mlp.gate.e_score_correction_bias"]
        self.att.next_skip_topk, self.indexer = True, self.att.indexer

    @staticmethod
    @torch.no_grad()
    def filled(m, values):
        for n, t in m.named_parameters():
            assert t.shape == values[n].shape, n
            t.copy_(values[n])
        return m.eval()

    @torch.no_grad()
    def rows(self, tokens, h, cache, top):
        """Outputs of rows with the given next tokens and states; top None: every row selects for itself."""
        x = torch.cat([self.enorm(self.trunk.embed[torch.tensor(tokens)]), self.hnorm(h)], -1) @ self.eh.t()
        x = x[None]
        self.att.indexer, self.att.skip_topk = (self.indexer, False) if top is None else (None, True)
        y, _, top = self.att(hidden_states=self.ln1(x), attention_mask=torch.ones(1, len(tokens), dtype=torch.bool), past_key_values=cache, prev_topk_indices=top)
        x = x + y
        x = x + self.moe(self.ln2(x))
        return self.last(x)[0], top

    @torch.no_grad()
    def chain(self, h, seq, s, given=None):
        """Drafts 1 to K from row s: rows 0 to s with the trunk's states h and the tokens after them, then the recycled output.
        given: the tokens that drafts 2 and 3 embed, else the drafts' own. Logits [K, vocab], outputs [K, hidden], drafts."""
        cache = self.ref.Cache(self.i + 1)
        o, top = self.rows(seq[1:s + 2], h[:s + 1], cache, None)
        o, top = o[-1:], top[:, -1:]
        logits, outs, drafts = [], [], []
        for k in range(K):
            if k:
                top = torch.cat([top, torch.tensor([[[s + k]]], dtype=top.dtype)], -1)
                o, top = self.rows([given[k - 1] if given else drafts[-1]], o, cache, top)
            lg = F.linear(o, self.trunk.head)
            logits.append(lg); outs.append(o); drafts.append(int(lg.argmax()))
        return torch.cat(logits), torch.cat(outs), drafts


def golden(source, folder, which=(0, 1, 7, 5)):
    d = Drafter(source, folder)
    lines = [json.loads(x) for x in open(os.path.join(folder, "prompts.jsonl"))]
    ten = {}
    for i in which:
        ids, greedy, stop = (lines[i][k] for k in ("ids", "greedy", "stop_at"))
        n, seq = len(ids), ids + greedy
        h = d.trunk.hidden(seq[:n + 24])
        stop = min(20, len(greedy) if stop is None else stop)
        free = {j: d.chain(h, seq, n - 1 + j) for j in ((0,) if i == 5 else range(0, stop - K))}
        missed = [j for j, (_, _, x) in free.items() if x[0] != greedy[j + 1] or x[1] != greedy[j + 2]]
        starts = [0] + [j for j in missed if j][:1]
        if len(starts) == 1 and i != 5:
            starts.append(5)
        for j in starts:
            f = d.chain(h, seq, n - 1 + j, greedy[j + 1:j + K])
            own = free[j]
            t = "%d.%d" % (i, j)
            ten.update({"forced." + t: f[0], "forced_out." + t: f[1], "tokens." + t: torch.tensor(own[2], dtype=torch.int32), "hidden." + t: h[n - 1 + j]})
            if own[2][:K - 1] != greedy[j + 1:j + K]:
                ten["own." + t], ten["own_out." + t] = own[0][1:], own[1][1:]
            gap = f[0].topk(2, -1).values
            print("prompt %d of %d tokens, chain from row %d: trunk %s, drafts %s, own %s, gaps %s" % (
                i, n, n - 1 + j, greedy[j + 1:j + 1 + K], f[0].argmax(-1).tolist(), own[2], ["%.2f" % x for x in (gap[:, 0] - gap[:, 1]).tolist()]), flush=True)
    d.ref.write(os.path.join(folder, "mtp_golden.safetensors"), ten, {"reference": "attention, experts and norms of transformers' modeling_glm5_next.py, fp32 on a CPU, dequantised fp8 weights, unquantised activations"})


if __name__ == "__main__":
    if sys.argv[1] == "--golden":
        golden(*sys.argv[2:4])
    else:
        ap = argparse.ArgumentParser()
        ap.add_argument("model"); ap.add_argument("--corpus"); ap.add_argument("--n", type=int, default=8)
        ap.add_argument("--max", type=int, default=4096); ap.add_argument("--seed", type=int, default=12345); ap.add_argument("--json")
        a = ap.parse_args()
        shares(a.model, a.corpus, a.n, a.max, a.seed, a.json)
