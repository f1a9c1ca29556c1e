#!/usr/bin/env python3
"""Chat on the tiny model in float32: the reference's tokens over HTTP, reasoning apart from content, tool calls, a fact in
a long text; the same streamed and whole."""
from common import *

need_model()
with Server("--dtype", "float32", "--kv-cache-dtype", "float32") as s:
    check(s.ready_s < 1.5, f"ready {s.ready_s:.2f} s after the start")
    for i, p in enumerate(prompts()):
        body = {"messages": p["messages"], "temperature": 0, "max_tokens": 64}
        if p["tools"]:
            body["tools"] = p["tools"]
        if p["reasoning_effort"]:
            body["reasoning_effort"] = p["reasoning_effort"]
        t = s.post("/tokenize", {k: v for k, v in body.items() if k in ("messages", "tools", "reasoning_effort")}).json
        assert "tokens" in t, t
        equal(t["tokens"], p["ids"], f"prompt {i}: /tokenize gives the reference's {len(p['ids'])} ids")
        r = s.complete(p["ids"], max_tokens=64, ignore_eos=True, return_token_ids=True).json
        n = p["stop_at"] or 64
        equal(r["choices"][0]["token_ids"][:n], p["greedy"][:n], f"prompt {i}: {n} greedy tokens equal the reference's")
        r2 = s.complete(p["text"], max_tokens=64, return_token_ids=True).json
        equal(r2["choices"][0]["prompt_token_ids"], p["ids"], f"prompt {i}: its text as a completion has the same ids")
        whole = s.post("/v1/chat/completions", {**body, "return_token_ids": True}).json
        c = whole["choices"][0]
        got = c["token_ids"]
        equal(got, p["greedy"][:len(got)], f"prompt {i}: chat gives the same tokens, up to the end token")
        chunks = s.chunks("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        m = c["message"]
        equal(joined(chunks, "reasoning"), m["reasoning"] or "", f"prompt {i}: streamed reasoning = whole")
        equal(joined(chunks, "content"), m["content"] or "", f"prompt {i}: streamed content = whole")
        a = [(k["name"], k["arguments"]) for k in calls_of(chunks)]
        b = [(k["function"]["name"], k["function"]["arguments"]) for k in m.get("tool_calls") or []]
        equal(a, b, f"prompt {i}: streamed calls = whole ({b})")
        equal(chunks[-1]["usage"], {k: v for k, v in whole["usage"].items() if v is not None}, f"prompt {i}: same usage")
        equal(whole["usage"]["completion_tokens"], len(got), f"prompt {i}: completion_tokens = ids sent")
        fin = [ch["finish_reason"] for x in chunks for ch in x["choices"] if ch["finish_reason"]]
        equal(fin, [c["finish_reason"]], f"prompt {i}: one finish_reason, {c['finish_reason']}")
        if i in (3, 7):
            want = "tool_calls" if len(got) < 64 else "length"
            equal(c["finish_reason"], want, f"prompt {i}: finish_reason with calls is {want}")
            check(all(json.loads(k["arguments"]) is not None for k in calls_of(chunks)), f"prompt {i}: arguments are JSON") if want == "tool_calls" else None
            ids = [k["id"] for k in calls_of(chunks)]
            check(all(ids) and len(set(ids)) == len(ids), f"prompt {i}: call ids are strings and distinct", ids)
        if i == 5:
            check(len(p["ids"]) > 200, "the planted fact lies in a long text")

    p = prompts()[3]
    r = s.post("/v1/chat/completions", {"messages": p["messages"], "tools": p["tools"], "temperature": 0, "max_tokens": 300}).json["choices"][0]
    k = r["message"].get("tool_calls") or []
    check(r["finish_reason"] == "tool_calls" and [x["function"]["name"] for x in k] == ["open_stock", "convert_currency"] and
          json.loads(k[0]["function"]["arguments"])["owner"] == "Frank" and r["message"]["content"] is None,
          "two different calls: finish tool_calls, content null", r)
    r = s.post("/v1/chat/completions", {"messages": p["messages"], "tools": p["tools"], "temperature": 0, "max_tokens": 300,
                                        "parallel_tool_calls": False}).json["choices"][0]
    equal(len(r["message"]["tool_calls"]), 1, "parallel_tool_calls false: one call")

    # tool_choice none: rendered, not parsed
    p = prompts()[3]
    r = s.post("/v1/chat/completions", {"messages": p["messages"], "tools": p["tools"], "tool_choice": "none", "temperature": 0,
                                        "max_tokens": 64, **({"reasoning_effort": p["reasoning_effort"]} if p["reasoning_effort"] else {})}).json
    check("tool_calls" not in r["choices"][0]["message"] and "<tool_call>" in r["choices"][0]["message"]["content"],
          "tool_choice none: the call stays text", r)
    r = s.chat("Please add 3 and 2.", include_reasoning=False).json
    check(r["choices"][0]["message"]["reasoning"] is None and r["choices"][0]["message"]["content"] == "3 + 2 = 5.",
          "include_reasoning false leaves the reasoning out", r)
    r = s.chat("Please add 3 and 2.", max_tokens=4).json["choices"][0]
    check(r["finish_reason"] == "length" and r["message"]["reasoning"] and r["message"]["content"] == "",
          "thinking cut by max_tokens: length, reasoning text, empty content", r)
    r = s.chat("Please add 3 and 2.", chat_template_kwargs={"enable_thinking": False}).json["choices"][0]["message"]
    check("<think>" not in (r["content"] or "") and "</think>" not in (r["content"] or ""),
          "enable_thinking false leaks no tags: the parser starts from the rendered prompt", r)
    r = s.chat("Please add 3 and 2.", thinking_token_budget=3, max_tokens=12, return_token_ids=True).json["choices"][0]
    equal(r["token_ids"][3], 2522, "thinking_token_budget 3: the fourth token is </think>")
with Server("--reasoning-field", "both", "--enable-prompt-tokens-details") as s:
    r = s.chat("Please add 3 and 2.").json
    m = r["choices"][0]["message"]
    check(m["reasoning"] and m["reasoning"] == m["reasoning_content"], "--reasoning-field both writes both names", m)
    equal(r["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "--enable-prompt-tokens-details: cached_tokens is there when 0")
with Server("--reasoning-parser", "none", "--tool-call-parser", "none") as s:
    r = s.chat("Please add 3 and 2.").json["choices"][0]["message"]
    check("</think>" in r["content"] and r["reasoning"] is None, "without parsers all is content", r)
    p = prompts()[3]
    r = s.post("/v1/chat/completions", {"messages": p["messages"], "tools": p["tools"], "tool_choice": "auto"})
    check(r.status == 400 and "requires --enable-auto-tool-choice" in r.json["error"]["message"], "tool_choice auto without a parser: 400", r.body)
done()
