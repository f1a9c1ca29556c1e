#!/usr/bin/env python3
"""Prefix caching over HTTP: what is reported, what keeps requests apart, resets; and a conversation of 40 turns with tools,
each answer equal to that of a server that computes every prompt in full."""
from common import *

need_model()
TOOLS = [{"type": "function", "function": f} for f in (
    {"name": "add", "description": "Add two integers.",
     "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "First number"},
                                                     "b": {"type": "integer", "description": "Second number"}}, "required": ["a", "b"]}},
    {"name": "switch_light", "description": "Switch a light on or off.",
     "parameters": {"type": "object", "properties": {"room": {"type": "string", "description": "Name of the room"},
                                                     "on": {"type": "boolean", "description": "True for on"}}, "required": ["room", "on"]}},
    {"name": "set_timer", "description": "Set a timer.",
     "parameters": {"type": "object", "properties": {"minutes": {"type": "integer", "description": "Minutes to wait"},
                                                     "label": {"type": "string", "description": "Name of the timer"}}, "required": ["minutes"]}})]


def cached(r):
    return (r.json if isinstance(r, Reply) else r)["usage"]["prompt_tokens_details"]["cached_tokens"]


with Server("--enable-prompt-tokens-details", "--max-model-len", 4096, "--max-num-seqs", 8, "--log-stats-interval", "0.3") as s, \
        Server("--enable-prompt-tokens-details", "--max-model-len", 4096, "--max-num-seqs", 8, "--no-enable-prefix-caching") as cold:
    check("snapshot_slots=8" in s.text() and "prefix caching page_tokens=64" in s.text(), "the log tells snapshot slots apart and the page")
    check("snapshot_slots=0" in cold.text() and "prefix caching" not in cold.text(), "none without prefix caching")

    # repetitions: at most one page and what lies behind it
    for n in (32, 64, 65, 96, 128, 130):
        ids = [200 + (i * i + n) % 900 for i in range(n)]
        want = cold.complete(ids, max_tokens=5, logprobs=3).json
        for again in range(3):
            r = s.complete(ids, max_tokens=5, logprobs=3).json
            equal(r["choices"], want["choices"], f"{n} tokens, {'again' if again else 'cold'}: the same answer")
            equal(cached(r), (n - 1) // 64 * 64 if again else 0, f"{n} tokens, {'again' if again else 'cold'}: cached_tokens")
        equal(cached(want), 0, "cached_tokens is there, and 0, where the cache is off")

    # every way to ask tells
    ids = [300 + i % 70 for i in range(150)]
    s.complete(ids, max_tokens=3)
    _, d = s.stream("/v1/completions", {"prompt": ids, "max_tokens": 3, "temperature": 0, "stream_options": {"include_usage": True}})
    equal(cached(json.loads(d[-2])), 128, "a stream's last usage has it")
    equal(cached(s.complete(ids, max_tokens=3, temperature=1, n=3)), 128, "n=3 counts the prompt once")
    equal(cached(s.complete(ids, max_tokens=3, prompt_logprobs=1)), 0, "prompt_logprobs: no cache")
    equal(cached(s.complete(ids, max_tokens=3, cache_salt="one")), 0, "another cache_salt: nothing in common")
    equal(cached(s.complete(ids, max_tokens=3, cache_salt="one")), 128, "the same cache_salt: its own cache")
    equal(cached(s.complete(ids, max_tokens=3, cache_salt="two")), 0, "a third")
    equal(cached(s.complete(ids, max_tokens=3)), 128, "none at all")
    text = "You are a helpful assistant. " * 20
    equal([cached(s.chat([{"role": "system", "content": text}, {"role": "user", "content": q * 60}], max_tokens=3)) // 64 > 0
           for q in ("Who are you? ", "Please add 3 and 2. ", "What is 4 + 5? ")], [False, False, True],
          "a common system text is shared from the third request on: the second keeps the state where they part")

    # metrics
    m = s.metrics()
    get = lambda name: next(v for k, v in m.items() if k.startswith(name))
    q, h, p = get("vllm:prefix_cache_queries_total"), get("vllm:prefix_cache_hits_total"), get("vllm:prompt_tokens_total")
    check(0 < h < q < p, "hits < queries < prompt tokens (prompt_logprobs asked nothing)", (h, q, p))
    equal(get("vllm:prompt_tokens_cached_total"), h, "prompt_tokens_cached")
    by = {w: next(v for k, v in m.items() if "by_source" in k and w in k) for w in ("local_compute", "local_cache_hit")}
    equal(by, {"local_compute": p - h, "local_cache_hit": h}, "prompt_tokens_by_source")
    equal(get("vllm:request_prefill_kv_computed_tokens_sum"), p - h, "request_prefill_kv_computed_tokens")
    check(get("glimmer:state_snapshots{") > 0 and get("glimmer:state_snapshots_taken_total") > 0 and get("glimmer:prefix_cache_pages{") > 0, "snapshots and pages")
    check(any('enable_prefix_caching="True"' in k for k in m) and any('enable_prefix_caching="False"' in k for k in cold.metrics()), "cache_config_info")
    equal(s.metric("vllm:kv_cache_usage_perc"), 0, "what is only cached is not in use")
    line, end = f"Prefix cache hit rate: {100 * h / q:.1f}%", time.time() + 10
    while line not in s.text() and time.time() < end:
        time.sleep(0.1)
    check(line in s.text(), "the periodic line has the hit rate", line)

    # reset
    k = s.open("/v1/completions", {"prompt": ids, "max_tokens": 3500, "ignore_eos": True, "stream": True})
    k.recv(4096)
    while not s.metric("vllm:kv_cache_usage_perc"):
        time.sleep(0.01)
    equal(s.post("/reset_prefix_cache", None).json, {"success": False}, "no reset while a request holds pages")
    k.close()
    s.idle()
    r = s.post("/reset_prefix_cache", None)
    equal((r.status, r.json), (200, {"success": True}), "a reset at rest")
    equal(cached(s.complete(ids, max_tokens=3)), 0, "nothing is left")
    equal(s.get("/reset_prefix_cache").status, 405, "it is a POST")
    equal(cold.post("/reset_prefix_cache", "{}").json, {"success": True}, "without a cache there is nothing to do")

    # a conversation of 40 turns with tools; the client leaves reasoning out
    s.post("/reset_prefix_cache", None)
    say = ["What is {a} + {b}?", "Switch the light in the cellar on.", "Set a timer for {b} minutes.", "Switch the light in the market off."]
    messages = []
    total = hit = turns = calls = wrong = 0
    least = []
    while turns < 40:
        if not messages or messages[-1]["role"] != "tool":
            messages.append({"role": "user", "content": say[turns % len(say)].format(a=turns + 311, b=2 * turns + 101)})
        body = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
        a, b = s.post("/v1/chat/completions", body).json, cold.post("/v1/chat/completions", body).json
        for r in (a, b):
            for t in r["choices"][0]["message"].get("tool_calls") or []:
                t["id"] = "x"
        if a["choices"] != b["choices"]:
            wrong += 1
            check(False, f"turn {turns}: equal to the server without a cache", (a["choices"], b["choices"]))
        turns += 1
        total += a["usage"]["prompt_tokens"]
        hit += cached(a)
        least.append(a["usage"]["prompt_tokens"] - cached(a))
        m = a["choices"][0]["message"]
        back = {"role": "assistant", "content": m["content"]}
        if m.get("tool_calls"):
            calls += len(m["tool_calls"])
            back["tool_calls"] = m["tool_calls"]
        messages.append(back)
        for t in m.get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": t["id"], "content": '{"result": 12}'})
    print(f"      {turns} turns, {calls} calls, {total} prompt tokens, {hit} of them cached: {100 * hit / total:.1f} %; computed a turn: {least}")
    equal(wrong, 0, "40 turns: every answer equal")
    check(calls >= 5, "with calls", calls)
    check(hit >= 0.9 * total, "at least 90 % of the prompt tokens came from the cache", hit / total)

# what a request leaves is not in use
with Server("--max-model-len", 2048, "--max-num-seqs", 3, "--num-gpu-blocks-override", 40, "--state-snapshot-slots", 2,
            "--state-snapshot-interval", 0, "--enable-prompt-tokens-details") as s:
    for i in range(30):
        s.complete([200 + (i % 11 * 31 + k) % 900 for k in range(300)], max_tokens=70, ignore_eos=True)
    check(s.idle() is not None, "at rest no page and no slot is in use")
    check(s.metric("glimmer:prefix_cache_evicted_pages_total") > 0 and s.metric("glimmer:state_snapshots_evicted_total") > 0, "evictions are counted")
r = run("serve", TINY, "--state-snapshot-slots", "x")
check(r.returncode == 2, "--state-snapshot-slots x: refused", r.stderr[-300:])
r = run("serve", TINY, "--max-model-len", "2048", "--kv-cache-memory-bytes", "64m", "--state-snapshot-slots", "100000", "--port", "0")
check(r.returncode == 1 and "--state-snapshot-slots 100000" in r.stderr, "more snapshot slots than the cache holds: refused by name", r.stderr[-300:])
done()
