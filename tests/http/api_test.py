#!/usr/bin/env python3
"""The OpenAI dialect on the tiny model: shapes, errors, lengths, stop strings, n, seeds, logprobs, keys."""
import random
from common import *

need_model()
Q = "Please add 3 and 2."


def error(r, status, text="", type_="BadRequestError", param="any"):
    try:
        e = r.json["error"]
        ok = r.status == status and e["code"] == status and text in e["message"] and e["type"] == type_ and \
            set(e) == {"message", "type", "param", "code"} and (param == "any" or e["param"] == param)
    except Exception:
        ok = False
    return ok and r.headers["content-type"] == "application/json"


with Server("--dtype", "float32", "--kv-cache-dtype", "float32", "--served-model-name", "tiny", "alias", "--max-model-len", "4096") as s:
    # routes
    m = s.get("/v1/models").json
    equal([x["id"] for x in m["data"]], ["tiny", "alias"], "/v1/models lists the served names in order")
    equal(list(m["data"][0]), ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"], "/v1/models keys in order")
    equal(m["data"][0]["max_model_len"], 4096, "/v1/models max_model_len")
    check(s.get("/health").status == 200 and s.get("/health").body == b"", "/health 200, empty body")
    check(s.get("/ping").status == 200 and s.post("/ping", "").status == 200, "/ping by GET and POST")
    equal(list(s.get("/version").json), ["version"], "/version")
    equal(s.get("/load").body, b'{"server_load":0}', "/load")
    r = s.get("/nothing")
    check(r.status == 404 and r.body == b'{"detail":"Not Found"}', "unknown path: 404", r.body)
    r = s.get("/v1/completions")
    check(r.status == 405 and r.body == b'{"detail":"Method Not Allowed"}' and r.headers.get("allow") == "POST", "wrong method: 405 with allow", r.headers)
    check(s.request("DELETE", "/v1/models").status == 405, "DELETE: 405")
    r = s.request("OPTIONS", "/v1/completions", headers={"Origin": "http://a", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"})
    check(r.status == 200 and r.headers.get("access-control-allow-origin") == "*" and r.headers.get("access-control-allow-headers") == "authorization", "CORS preflight", r.headers)

    # shapes
    r = s.chat(Q, model="alias")
    j = r.json
    equal(list(j), ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
                    "prompt_token_ids", "prompt_text", "kv_transfer_params", "metrics"], "chat answer: keys in order")
    equal(list(j["choices"][0]), ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"], "chat choice: keys in order")
    equal(list(j["choices"][0]["message"]), ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"], "message: keys in order")
    check(j["model"] == "tiny" and re.fullmatch(r"chatcmpl-[0-9a-f]{16}", j["id"]) and b": " not in r.body.split(b'"content"')[0], "first served name, id form, compact JSON")
    j = s.complete("The", max_tokens=3).json
    equal(list(j), ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "kv_transfer_params", "metrics"], "completion answer: keys in order")
    equal(list(j["choices"][0]), ["index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"], "completion choice: keys in order")
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": Q}]}, headers={"X-Request-Id": "abc-1"})
    equal(r.json["id"], "chatcmpl-abc-1", "X-Request-Id becomes the id")

    # streams, byte for byte but for ids and times
    r, d = s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": Q}], "temperature": 0})
    equal(r.headers["content-type"], "text/event-stream; charset=utf-8", "stream content type")
    norm = [re.sub(r'"created":\d+', '"created":T', re.sub(r"chatcmpl-[0-9a-f]{16}", "ID", x)) for x in d]
    equal(norm[0], '{"id":"ID","object":"chat.completion.chunk","created":T,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}', "role chunk")
    check(norm[1].startswith('{"id":"ID","object":"chat.completion.chunk","created":T,"model":"tiny","choices":[{"index":0,"delta":{"reasoning":"') and
          norm[1].endswith('"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'), "reasoning chunk", norm[1])
    check('"finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"' in norm[-2] and norm[-1] == "[DONE]", "last chunk has finish, stop_reason and the fingerprint; then [DONE]", norm[-2])
    _, d = s.stream("/v1/completions", {"prompt": "The", "max_tokens": 64, "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}})
    norm = [re.sub(r'"created":\d+', '"created":T', re.sub(r"cmpl-[0-9a-f]{16}", "ID", x)) for x in d]
    check(re.fullmatch(r'\{"id":"ID","object":"text_completion","created":T,"model":"tiny","choices":\[\{"index":0,"text":"[^"]*","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null\}\]\}', norm[0]), "completion chunk", norm[0])
    check(re.fullmatch(r'\{"id":"ID","object":"text_completion","created":T,"model":"tiny","choices":\[\],"usage":\{"prompt_tokens":1,"total_tokens":65,"completion_tokens":64\},"system_fingerprint":"[^"]*"\}', norm[-2]), "usage chunk", norm[-2])

    # usage in streams
    for so, want in ((None, 0), ({}, 0), ({"include_usage": None}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)):
        c = s.chunks("/v1/completions", {"prompt": "The", "max_tokens": 3, "temperature": 0, **({"stream_options": so} if so is not None else {})})
        equal(sum("usage" in x for x in c), want, f"stream_options {so}: {want} usage chunk")
    c = s.chunks("/v1/completions", {"prompt": "The", "max_tokens": 3, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    equal([x["usage"]["completion_tokens"] for x in c][-1], 3, "continuous_usage_stats: the last count")
    check(all("usage" in x for x in c), "continuous_usage_stats: in every chunk")
    check(error(s.complete("a", stream_options={"include_usage": True}), 400, "Stream options can only be defined when `stream=True`."), "stream_options without stream: 400")

    # prompts
    ids = s.post("/tokenize", {"prompt": "Once upon a time"}).json
    equal(ids["count"], len(ids["tokens"]), "/tokenize count")
    equal(list(ids), ["count", "max_model_len", "tokens", "token_strs"], "/tokenize keys")
    equal(len(s.post("/tokenize", {"prompt": "Once upon", "return_token_strs": True}).json["token_strs"]), s.post("/tokenize", {"prompt": "Once upon"}).json["count"], "token_strs")
    equal(s.post("/detokenize", {"tokens": ids["tokens"]}).json, {"prompt": "Once upon a time"}, "/detokenize gives the text back")
    a = s.complete("Once upon a time", max_tokens=8).json["choices"][0]["text"]
    equal(s.complete(ids["tokens"], max_tokens=8).json["choices"][0]["text"], a, "ids and text give the same")
    j = s.complete(["Once upon a time", "The"], max_tokens=8).json
    equal([(c["index"], c["text"]) for c in j["choices"]], [(0, a), (1, s.complete("The", max_tokens=8).json["choices"][0]["text"])], "list of texts")
    equal(j["usage"]["prompt_tokens"], ids["count"] + 1, "prompt tokens of a list are summed")
    j2 = s.complete([ids["tokens"], [ids["tokens"][0]]], max_tokens=8).json
    equal(j2["choices"][0]["text"], a, "list of id lists")
    j = s.complete([ids["tokens"], ids["tokens"]], max_tokens=4, n=2, temperature=1, seed=5).json
    equal([c["index"] for c in j["choices"]], [0, 1, 2, 3], "prompts x n: index = prompt x n + i")
    equal(j["usage"]["prompt_tokens"], 2 * ids["count"], "n: prompt tokens once for each prompt")
    equal([c["text"] for c in j["choices"]][:2], [c["text"] for c in j["choices"]][2:], "same seed, same prompt: same texts")
    r = s.complete("Once upon a time", max_tokens=4, echo=True, logprobs=2).json["choices"][0]
    check(r["text"].startswith("Once upon a time") and len(r["logprobs"]["tokens"]) == ids["count"] + 4 and r["logprobs"]["token_logprobs"][0] is None,
          "echo with logprobs: prompt and output", r)
    equal("".join(r["logprobs"]["tokens"]), r["text"], "logprob tokens join to the text")
    r = s.complete("Once upon a time", max_tokens=0, echo=True).json
    equal((r["choices"][0]["text"], r["usage"]["completion_tokens"]), ("Once upon a time", 0), "echo with max_tokens 0")

    # n, seeds
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "n": 4, "temperature": 1, "max_tokens": 24, "stream_options": {"include_usage": True}}
    for seed in (None, 11):
        c = s.chunks("/v1/chat/completions", {**body, **({"seed": seed} if seed else {})})
        texts = [joined(c, "reasoning", i) + "|" + joined(c, "content", i) for i in range(4)]
        fins = sorted(ch["index"] for x in c for ch in x["choices"] if ch["finish_reason"])
        check(fins == [0, 1, 2, 3] and len(set(texts)) > 1, f"n=4 streamed, seed {seed}: four finishes, different texts", texts)
        u = c[-1]["usage"]
        check(u["prompt_tokens"] < 40 and u["completion_tokens"] <= 96, "n=4: usage counted once", u)
        if seed:
            c2 = s.chunks("/v1/chat/completions", {**body, "seed": seed})
            equal([joined(c2, "reasoning", i) + "|" + joined(c2, "content", i) for i in range(4)], texts, "same seed: same four texts")
    check(error(s.complete("a", n=2), 400, "n must be 1 when using greedy sampling, got 2."), "n 2 at temperature 0: 400")

    # stop
    p = "Please add 3 and 2."
    full = s.chat(p).json["choices"][0]["message"]["content"]
    for stream in (False, True):
        def answer(**k):
            if not stream:
                c = s.chat(p, **k).json["choices"][0]
                return c["message"]["content"], c["finish_reason"], c["stop_reason"]
            c = s.chunks("/v1/chat/completions", {"messages": [{"role": "user", "content": p}], "temperature": 0, **k})
            last = c[-1]["choices"][0]
            return joined(c, "content"), last["finish_reason"], last.get("stop_reason")
        how = "streamed" if stream else "whole"
        equal(answer(stop="2 = 5.\n"), (full, "stop", None), f"{how}: a near miss is shown in full")
        equal(answer(stop=["= 6", "So 3"])[1:], ("stop", "So 3"), f"{how}: stop string inside the reasoning")
        equal(answer(stop=["zzz", "</think>3 + 2"]), ("", "stop", "</think>3 + 2"), f"{how}: a stop string over the end of thinking")
    c = s.complete(prompts()[1]["text"], max_tokens=40, stop=["</think>3 + 2"], include_stop_str_in_output=True).json["choices"][0]
    equal(c["text"], "3 + 2. So 3 + 2 = 5.</think>3 + 2", "include_stop_str_in_output keeps it")
    c = s.complete(prompts()[1]["text"], max_tokens=40, stop=["= 5", "2 ="]).json
    equal((c["choices"][0]["text"], c["choices"][0]["stop_reason"]), ("3 + 2. So 3 + ", "2 ="), "two stops: the one that completes first")
    check(c["usage"]["completion_tokens"] < 13, "tokens up to the completing one are counted", c["usage"])
    five = s.post("/tokenize", {"prompt": "5"}).json["tokens"][0]
    c = s.complete(prompts()[1]["text"], max_tokens=40, stop_token_ids=[five]).json["choices"][0]
    equal((c["text"], c["finish_reason"], c["stop_reason"]), ("3 + 2. So 3 + 2 = ", "stop", five), "stop_token_ids: text before it, stop_reason the id")
    c = s.complete(prompts()[1]["text"], max_tokens=40, ignore_eos=True).json
    equal((c["usage"]["completion_tokens"], c["choices"][0]["finish_reason"]), (40, "length"), "ignore_eos goes to max_tokens")
    c = s.complete(prompts()[1]["text"], max_tokens=40, min_tokens=30).json
    check(c["usage"]["completion_tokens"] >= 30, "min_tokens holds", c["usage"])
    c = s.complete(prompts()[1]["text"], max_tokens=10, logit_bias={str(five): 100}).json["choices"][0]
    equal(c["text"], "5" * 10, "logit_bias")
    c = s.complete(prompts()[1]["text"], max_tokens=5, allowed_token_ids=[five]).json["choices"][0]
    equal(c["text"], "55555", "allowed_token_ids")
    c = s.complete(prompts()[1]["text"], max_tokens=40, bad_words=["So"]).json["choices"][0]
    check("So" not in c["text"], "bad_words", c["text"])

    # logprobs
    c = s.chat(p, logprobs=True, top_logprobs=3).json["choices"][0]
    lp = c["logprobs"]["content"]
    check(all(list(x) == ["token", "logprob", "bytes", "top_logprobs"] and len(x["top_logprobs"]) == 3 for x in lp), "chat logprobs form", lp[:1])
    check(all(bytes(x["bytes"]).decode(errors="replace") == x["token"] and x["logprob"] <= 0 for x in lp), "bytes and token agree")
    cs = s.chunks("/v1/chat/completions", {"messages": [{"role": "user", "content": p}], "temperature": 0, "logprobs": True, "top_logprobs": 3})
    got = [x["token"] for ch in cs for q in ch["choices"] if q.get("logprobs") for x in q["logprobs"]["content"]]
    equal(got, [x["token"] for x in lp], "streamed logprobs: one entry a token")
    c = s.complete("Once upon a time", max_tokens=3, logprobs=2).json["choices"][0]["logprobs"]
    check(list(c) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"] and all(len(v) == 3 for v in c.values()) and c["text_offset"][0] == 0, "completion logprobs form", c)
    c = s.complete("Once upon a time", max_tokens=1, prompt_logprobs=1).json["choices"][0]["prompt_logprobs"]
    check(c[0] is None and len(c) == ids["count"] and all(str(t) in row for t, row in zip(ids["tokens"][1:], c[1:])), "prompt_logprobs: first null, own tokens in", c)
    lens = []
    for n in (300, 900, 1900):
        rng = random.Random(n)
        q = [rng.randrange(256, 2400) for _ in range(n)]
        c = s.complete(q, max_tokens=1, prompt_logprobs=0).json["choices"][0]["prompt_logprobs"]
        lens.append(c[0] is None and len(c) == n and all(str(t) in row for t, row in zip(q[1:], c[1:])))
    check(all(lens), "prompt_logprobs of long prompts: aligned")

    # errors
    E = lambda **k: s.complete("a", **k)
    check(error(s.post("/v1/completions", {"prompt": "a", "model": "x" * 3000}), 404, "does not exist.", "NotFoundError", "model"), "unknown model: 404")
    check(error(s.post("/v1/completions", "{"), 400, "validation error", "Bad Request", "body"), "broken JSON: 400")
    check(error(s.post("/v1/completions", "[]"), 400, "validation error", "Bad Request", "body"), "a list as body: 400")
    check(error(s.post("/v1/chat/completions", {}), 400, "Field required", "Bad Request", "body.messages"), "no messages: 400")
    check(error(s.post("/v1/completions", {}), 400, "Field required", "Bad Request", "body.prompt"), "no prompt: 400")
    check(error(s.chat([{"role": "user"}, 5]), 400), "malformed messages: 400")
    r = s.post("/v1/completions", "{}", headers={"Content-Type": "text/plain"})
    check(error(r, 400, "Unsupported Media Type: Only 'application/json' is allowed".replace("'", "\\'"), "Bad Request"), "content type: 400", r.body)
    for v, status in (("0", 200), ("1", 400), ("x", 200)):
        equal(s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"X-data-parallel-rank": v}).status, status, f"X-data-parallel-rank {v}: {status}")
    for v, ok in ((10**9, False), (0, False), (-1, False), (1.5, False), ("5", False), (None, True), (2.0, True), (True, False), ([], False)):
        for path, b in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}), ("/v1/completions", {"prompt": "a"})):
            r = s.post(path, {**b, "max_tokens": v, "temperature": 0})
            check(r.status == (200 if ok else 400), f"{path} max_tokens {v!r}: {200 if ok else 400}", r.body)
    for k, v in (("temperature", -1), ("temperature", 3), ("temperature", "x"), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("min_p", 2), ("repetition_penalty", 0),
                 ("presence_penalty", 3), ("n", 0), ("n", 20000), ("stop", ""), ("stop", [1]), ("stop", ["a"] * 99), ("logit_bias", {"99999": 1}), ("logit_bias", {"x": 1}),
                 ("allowed_token_ids", []), ("stop_token_ids", [99999]), ("logprobs", 21), ("logprobs", -2), ("prompt_logprobs", 21), ("min_tokens", 99),
                 ("suffix", "x"), ("truncate_prompt_tokens", 0), ("bad_words", [""]), ("stream", "yes"), ("prompt", [[]]), ("prompt", []), ("prompt", ""), ("prompt", {"a": 1}),
                 ("prompt", [1, "a"]), ("prompt", [2600]), ("prompt", [-1]), ("seed", 1.5)):
        r = s.post("/v1/completions", {"prompt": "a", "temperature": 1, k: v})
        check(r.status == 400 and len(r.body) < 1500, f"{k} = {str(v)[:30]}: 400", (r.status, r.body))
    check(error(s.complete([2600]), 400, "Token id 2600 is out of vocabulary"), "id outside the vocabulary")
    check(error(s.complete([[1], []]), 400, "The decoder prompt cannot be empty"), "empty prompt")
    t = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for k, status in (({"tools": []}, 400), ({"tool_choice": "auto"}, 400), ({"tools": t, "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400),
                      ({"tools": [], "tool_choice": "required"}, 400), ({"tools": t, "tool_choice": "required"}, 501), ({"tools": t, "tool_choice": "maybe"}, 400),
                      ({"tools": [{"type": "web", "function": {"name": "f"}}]}, 400), ({"tools": [{"type": "", "function": {"name": "f"}}]}, 400),
                      ({"response_format": {"type": "json_schema"}}, 400), ({"response_format": {"type": "json_object"}}, 501), ({"response_format": {"type": "x"}}, 400),
                      ({"response_format": {"type": "text"}}, 200), ({"top_logprobs": 2}, 400), ({"chat_template": "x"}, 400), ({"unknown_field": 1}, 200),
                      ({"add_generation_prompt": True, "continue_final_message": True}, 400), ({"priority": 5, "user": "u"}, 200)):
        r = s.chat("Hi", max_tokens=2, **k)
        check(r.status == status, f"chat {str(k)[:70]}: {status}", (r.status, r.body))

    # length rules, L = 4096
    L = 4096
    one = ids["tokens"][0]
    r = s.complete("a", max_tokens=5000)
    check(error(r, 400, "max_tokens=5000 cannot be greater than max_model_len", param="max_tokens"), "O > L", r.body)
    r = s.complete([one] * 4081, max_tokens=16)
    check(error(r, 400, "This model's maximum context length is 4096 tokens. However, you requested 16 output tokens and your prompt contains 4081 input tokens, for a total of 4097 tokens.", param="input_tokens"), "P + O = L + 1", r.body)
    check(s.complete([one] * 4080, max_tokens=16).status == 200, "P + O = L")
    c = s.post("/v1/completions", {"prompt": [one] * 4095, "max_tokens": 1, "temperature": 0})
    check(c.status == 200 and c.json["usage"]["completion_tokens"] == 1, "P = L - 1", c.body)
    for n in (4096, 4097):
        check(error(s.complete([one] * n, max_tokens=1), 400, "maximum context length is 4096"), f"P = {n}: 400")
    check(error(s.complete("x y " * 60000, max_tokens=1), 400, "characters (more than", param="input_text"), "refused by characters alone")
    check(error(s.chat("word " * 5000), 400, "maximum context length is 4096 tokens"), "a long chat names the context length")
    c = s.complete([one] * 5000, max_tokens=4, truncate_prompt_tokens=10).json
    equal(c["usage"]["prompt_tokens"], 10, "truncate_prompt_tokens")
    check(s.chat("Hi", max_completion_tokens=3, max_tokens=9).json["usage"]["completion_tokens"] == 3, "max_completion_tokens wins")

    # strings
    for body, status in ((b'{"prompt":"\\ud83d\\ude80","max_tokens":1}', 200), (b'{"prompt":"\\ud83d","max_tokens":1}', 400), (b'{"prompt":"a\\u0000b","max_tokens":1,"echo":true}', 200)):
        r = s.post("/v1/completions", body)
        check(r.status == status, f"escapes {body[10:30]!r}: {status}", r.body)
        r.body.decode()
with Server("--api-key", "k1", "k2", "--max-model-len", "2k", "--clamp-max-tokens", "--max-num-queued-reqs", "0") as s:
    check(s.get("/health").status == 200 and s.get("/version").status == 200 and s.get("/metrics").status == 200, "open paths need no key")
    for h, status in (({}, 401), ({"Authorization": "Bearer no"}, 401), ({"Authorization": "k1"}, 401), ({"Authorization": "Bearer k1x"}, 401), ({"Authorization": "Bearer k1"}, 200), ({"Authorization": "bearer k2"}, 200)):
        r = s.request("GET", "/v1/models", headers=h)
        check(r.status == status and (status == 200 or r.body == b'{"error":"Unauthorized"}'), f"{h}: {status}", r.body)
    check(s.post("/tokenize", {"prompt": "a"}).status == 401, "/tokenize is guarded too")
    equal(s.request("GET", "/v1/models", headers={"Authorization": "Bearer k1"}).json["data"][0]["max_model_len"], 2000, "--max-model-len 2k is 2000")
    r = s.post("/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer k1"})
    check(r.status == 503 and r.json["error"]["type"] == "Service Unavailable" and "retry-after" in r.headers, "full queue: 503 with Retry-After", (r.status, r.headers, r.body))
with Server("--max-model-len", "2K", "--clamp-max-tokens", "--enable-request-id-headers", "--enable-force-include-usage",
            "--override-generation-config", '{"max_new_tokens": 7}', "--stream-interval", "4") as s:
    r = s.complete("Once upon a time", max_tokens=10**8, ignore_eos=True)
    equal(r.json["usage"]["completion_tokens"], 7, "--clamp-max-tokens; max_new_tokens caps every request")
    check(len(r.headers.get("x-request-id", "")) == 32, "X-Request-Id is made")
    c = s.chunks("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "return_token_ids": True})
    n = [len(x["choices"][0]["token_ids"]) for x in c if x["choices"]]
    # a busy machine may merge what was ready, never split it
    check(sum(n) == 7 and all(k >= 4 for k in n[1:-1]) and len(n) <= 3, "--stream-interval 4: the first at once, then four", n)
    check(all("usage" in x for x in c), "--enable-force-include-usage")
done()
