"""What the tiny model can do (its README), asked over HTTP: 192 held-out items with FP32, with BF16 and with FP8 pages. The
float32 server is the yardstick; the rounded caches must keep the abilities."""
import collections, concurrent.futures, json, os, re, sys
from common import ROOT, Server, check, done, need_model

need_model()
ITEMS = [json.loads(l) for l in open(os.path.join(ROOT, "tests", "fixtures", "tiny_eval.jsonl"))]


def right(expect, choice):
    m = choice["message"]
    c = (m["content"] or "").strip()
    # the items hold each value as its text; the server types them by the schema
    calls = [[t["function"]["name"], {k: v if isinstance(v, str) else json.dumps(v) for k, v in json.loads(t["function"]["arguments"]).items()}]
             for t in m.get("tool_calls") or []]
    if "calls" in expect:
        return calls == [[n, a] for n, a in expect["calls"]]
    if expect.get("nocall") and calls:
        return False
    if "equals" in expect:
        return c == expect["equals"]
    if "ends" in expect:
        w = re.findall(r"[A-Za-z0-9]+", c)
        return bool(w) and w[-1] == expect["ends"]
    if "starts" in expect:
        return c.startswith(expect["starts"])
    if "any" in expect:
        return c in expect["any"]
    if "story" in expect:
        return len(c.split()) >= 12 and choice["finish_reason"] == "stop"
    return expect["contains"].lower() in c.lower()


def score(*flags):
    """Share of right answers by task."""
    n, ok = collections.Counter(), collections.Counter()
    with Server("--max-num-seqs", 48, "--max-model-len", 20000, *flags) as s:
        def one(it):
            body = {"messages": it["messages"], "temperature": 0, "max_tokens": it["max_tokens"]}
            if it["tools"]:
                body["tools"] = [{"type": "function", "function": t} for t in it["tools"]]
            r = s.post("/v1/chat/completions", body, timeout=600)
            return it["task"], r.status == 200 and right(it["expect"], r.json["choices"][0])

        with concurrent.futures.ThreadPoolExecutor(48) as ex:
            for task, good in ex.map(one, ITEMS):
                n[task] += 1
                ok[task] += good
    return n, ok


def long(k):
    return k.startswith(("passkey", "needles"))


n, base = score("--dtype", "float32")
print("float32: " + ", ".join(f"{k} {base[k]}/{n[k]}" for k in n))
total = sum(n.values())
# The published scores of these tasks average 0.97; saying that no tool fits is the known weak spot (0.44).
check(sum(base.values()) >= 0.95 * total, f"float32 answers {sum(base.values())} of {total}")
check(all(base[k] == n[k] for k in n if k.startswith("passkey")), "every pass key is found, up to 16,384 tokens")
for name, flags in {"BF16 pages": ["--dtype", "bfloat16"], "FP8 pages": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"]}.items():
    _, got = score(*flags)
    lost = {k: base[k] - got[k] for k in n if base[k] != got[k]}
    print(f"{name}: {sum(got.values())} of {total}; against float32: {lost}")
    check(sum(got.values()) >= sum(base.values()) - 0.03 * total, f"{name}: abilities are kept", lost)
    check(sum(got[k] for k in n if long(k)) >= sum(base[k] for k in n if long(k)) - 1, f"{name}: facts in long texts are found")
done()
