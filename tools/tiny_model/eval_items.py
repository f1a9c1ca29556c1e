"""Held-out evaluation items as a fixture file, for a server to be judged on over HTTP.

usage: eval_items.py CORPUS OUT.jsonl --url http://127.0.0.1:8000 [--n 6] [--seed 12345]

CORPUS: the unpacked corpus.tar.gz. Lengths are counted by the server's /tokenize (the tiny model must be served).
A line an item: task, messages, tools, expect (see data.judge), max_tokens.
"""
import argparse, http.client, json, urllib.parse
import data
from evaluate_tasks import LONG, SHORT


class Counter:
    """encode() of data.Maker over HTTP: lists of ids for a list of texts."""
    def __init__(self, url):
        self.c = http.client.HTTPConnection(urllib.parse.urlparse(url).netloc)

    def __call__(self, texts):
        out = []
        for t in texts:
            self.c.request("POST", "/tokenize", json.dumps({"prompt": t, "add_special_tokens": False}), {"Content-Type": "application/json"})
            out.append(json.loads(self.c.getresponse().read())["tokens"])
        return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("corpus"); p.add_argument("out"); p.add_argument("--url", required=True)
    p.add_argument("--n", type=int, default=6); p.add_argument("--seed", type=int, default=12345)
    a = p.parse_args()
    mk = data.Maker(a.corpus, "held", a.seed, Counter(a.url))
    mk.prepare()
    with open(a.out, "w") as f:
        def put(it, n):
            json.dump({"task": it["task"], "messages": it["messages"], "tools": it["tools"], "expect": it["expect"], "max_tokens": n}, f)
            f.write("\n")
        for t in SHORT:
            for _ in range(a.n):
                put(mk.item(t), 250 if t in ("story", "describe") else 150)
        for kind, size in LONG:
            for _ in range(3 if size <= 4096 else 2):
                put(mk.item("%s_%d" % (kind, size), n_tok=int(size * .95) - 50, needles=6 if kind == "needles" else 1), 56)


main()
