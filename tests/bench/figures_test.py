"""Each figure against a scripted server with known delays."""
import json, math, re, socket, threading
from common import SLACK, check, done, equal, near, serve
from stub import Stub, delta, text, usage


def percentile(v, q):
    v = sorted(v)
    at = q / 100 * (len(v) - 1)
    i = math.floor(at)
    return v[i] + (v[min(i + 1, len(v) - 1)] - v[i]) * (at - i)


def spread(got, key, want, what):
    """Mean, median, p99 and std of a figure in ms against a list of seconds known beforehand."""
    m = sum(want) / len(want)
    early = SLACK if key in ("itl", "tpot") else 0.004
    near(got[f"mean_{key}_ms"] / 1e3, m, f"{what}: mean {key}", early)
    near(got[f"median_{key}_ms"] / 1e3, percentile(want, 50), f"{what}: median {key}", early)
    near(got[f"p99_{key}_ms"] / 1e3, percentile(want, 99), f"{what}: p99 {key}", early)
    std = math.sqrt(sum((x - m) ** 2 for x in want) / len(want))
    check(abs(got[f"std_{key}_ms"] / 1e3 - std) <= SLACK, f"{what}: std {key}", (got[f"std_{key}_ms"], std))


def tokens(n, first, gap):
    """n tokens, one a chunk."""
    out = [first, text("a")]
    for i in range(1, n):
        out += [gap, text("a", "length" if i == n - 1 else None)]
    return out + [usage(5, n), "DONE"]


SMALL = ("--random-input-len", 5, "--random-output-len", 4)


def one_to_ten():
    # Ten requests at once: first token after 0.1 + 0.02 i, then 4 gaps of 0.05; TPOT 0.05 each.
    first = [0.1 + 0.02 * i for i in range(10)]
    s = Stub(lambda i, b: tokens(5, first[i], 0.05))
    r = serve(s.port, "--num-prompts", 10, *SMALL, "--percentile-metrics", "ttft,tpot,itl,e2el", "--goodput", "ttft:205", "e2el:10000")
    equal(r.rc, 0, "ten requests: exit status")
    j = r.json
    equal((j["completed"], j["failed"], j["total_input_tokens"], j["total_output_tokens"]), (10, 0, 50, 50), "ten requests: counts")
    spread(j, "ttft", first, "ten requests")
    spread(j, "tpot", [0.05] * 10, "ten requests")
    spread(j, "itl", [0.05] * 40, "ten requests")
    spread(j, "e2el", [x + 0.2 for x in first], "ten requests")
    near(j["duration"], 0.48, "ten requests: duration")
    for key, n in (("request_throughput", 10), ("output_throughput", 50), ("total_token_throughput", 100)):
        check(abs(j[key] * j["duration"] - n) < 1e-6 * n, f"ten requests: {key} times the duration is {n}", j[key] * j["duration"])
    good = j["request_goodput"] * j["duration"]
    check(abs(good - round(good)) < 1e-6 and 5 <= round(good) <= 6, "ten requests: goodput counts those under the limit", good)
    equal(sum(1 for x in j["ttfts"] if x <= 0.205), round(good), "ten requests: goodput is what the times say")
    equal(j["max_output_tokens_per_s"], 50.0, "ten requests: all chunks fall into the first second")
    equal(j["max_concurrent_requests"], 10, "ten requests: all at once")
    equal(j["output_lens"], [5] * 10, "ten requests: output_lens")
    equal(j["input_lens"], [5] * 10, "ten requests: input_lens")
    equal([len(x) for x in j["itls"]], [4] * 10, "ten requests: itls")
    equal(j["generated_texts"], ["aaaaa"] * 10, "ten requests: texts")
    # the printed report agrees with the file
    label = {"Successful requests:": "completed", "Total generated tokens:": "total_output_tokens", "Mean TTFT (ms):": "mean_ttft_ms",
             "P99 TPOT (ms):": "p99_tpot_ms", "Median ITL (ms):": "median_itl_ms", "Output token throughput (tok/s):": "output_throughput"}
    for line, key in label.items():
        got = re.search("^" + re.escape(line) + r" +(\S+)", r.out, re.M)
        check(got and abs(float(got.group(1)) - j[key]) <= 0.005001, f"the report's '{line}'", got and got.group(0))


def published_identity():
    # the arithmetic of a published run: throughput times duration is the tokens
    s = Stub(lambda i, b: tokens(b["max_tokens"], 0.01, 0.001))
    r = serve(s.port, "--num-prompts", 40, "--random-input-len", 20, "--random-output-len", 20, "--random-range-ratio", 0.8, "--max-concurrency", 8)
    j = r.json
    equal(sum(j["output_lens"]), j["total_output_tokens"], "tokens add up")
    check(abs(j["output_throughput"] * j["duration"] - j["total_output_tokens"]) < 1e-6 * j["total_output_tokens"], "throughput x duration = tokens")
    equal(sorted(j["output_lens"]), sorted(b["max_tokens"] for p, _, b in s.seen if p == "/v1/completions"), "each answer has the length asked for")
    check(s.open_max <= 8, "never more than --max-concurrency at the server", s.open_max)


def lengths():
    # 0, 1, 2, 7 tokens
    def script(i, b):
        n = [0, 1, 2, 7][i]
        if n == 0:
            return [0.1, text("", "stop"), usage(5, 0), "DONE"]
        return tokens(n, 0.1, 0.1)
    r = serve(Stub(script).port, "--num-prompts", 4, *SMALL)
    j = r.json
    equal(j["output_lens"], [0, 1, 2, 7], "0, 1, 2, 7 tokens: counted by usage")
    equal((j["completed"], j["total_output_tokens"]), (4, 10), "0, 1, 2, 7 tokens: all complete")
    spread(j, "tpot", [0.1, 0.1], "0, 1, 2, 7 tokens: only those with more than one count")
    spread(j, "itl", [0.1] * 7, "0, 1, 2, 7 tokens")


def chunks():
    # a chunk is not a token: 3 in one, then 1, then none in an empty one; TPOT by tokens, ITL by chunks
    steps = [0.1, text("a a a"), 0.3, text(" b"), 0.2, text(""), 0.1, text(" c", "stop"), usage(5, 5), "DONE"]
    r = serve(Stub(lambda i, b: steps).port, "--num-prompts", 1, *SMALL)
    spread(r.json, "tpot", [0.6 / 4], "multi-token and empty chunks")
    spread(r.json, "itl", [0.3, 0.2, 0.1], "multi-token and empty chunks")
    equal(r.json["generated_texts"], ["a a a b c"], "multi-token and empty chunks: text")
    equal(r.json["output_chunks"], 4, "multi-token and empty chunks: chunks are counted apart")


def chat():
    # the role alone is no token: TTFT is the first reasoning, 0.3 s later
    steps = [0.1, delta(role="assistant", content=""), 0.3, delta(reasoning="hm"), 0.1, delta(content="x"), 0.1, delta("stop"), usage(9, 3), "DONE"]
    s = Stub(lambda i, b: steps)
    r = serve(s.port, "--backend", "openai-chat", "--num-prompts", 1, *SMALL)
    spread(r.json, "ttft", [0.4], "chat: the role chunk does not count")
    spread(r.json, "itl", [0.1, 0.1], "chat")
    equal(r.json["generated_texts"], ["hmx"], "chat: text")
    path, _, b = s.seen[-1]
    equal((path, b["max_completion_tokens"], b["messages"][0]["role"], b["messages"][0]["content"][0]["type"], b["ignore_eos"]),
          ("/v1/chat/completions", 4, "user", "text", True), "chat: body")
    none = [0.2, delta(role="assistant", content=""), 0.2, delta("length"), usage(9, 1), "DONE"]
    r = serve(Stub(lambda i, b: none).port, "--backend", "openai-chat", "--num-prompts", 1, *SMALL)
    spread(r.json, "ttft", [0.4], "chat without any text: the finish is the token")
    tool = [0.1, delta(role="assistant", content=""), 0.2, delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]), 0.1, delta("tool_calls"), usage(9, 4), "DONE"]
    r = serve(Stub(lambda i, b: tool).port, "--backend", "openai-chat", "--num-prompts", 1, *SMALL)
    spread(r.json, "ttft", [0.3], "chat: a tool call is a token")


def failing():
    ok = tokens(3, 0.05, 0.05)
    err = [0.05, text("a"), 'data: {"error": {"message": "engine fell over", "type": "InternalServerError", "param": null, "code": 500}}\n\n', "DONE"]
    scripts = [ok, [("status", 400, '{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}')],
               [("status", 503, "busy")], err, [0.05, text("a"), "CLOSE"], [0.05, "CLOSE"], ["DONE"],
               [0.05, text("a")], ["data: {nonsense\n\n", "DONE"], [0.7, *ok]]
    r = serve(Stub(lambda i, b: scripts[i]).port, "--num-prompts", 10, *SMALL)
    j = r.json
    equal((j["completed"], j["failed"]), (2, 8), "failures are counted")
    equal(j["output_lens"], [3] + [0] * 8 + [3], "failures have no tokens")
    equal(j["total_input_tokens"], 10, "failures leave the input total")
    for i, part in enumerate(["", "HTTP 400: too long", "HTTP 503: busy", "engine fell over", "broke off", "", "without a token",
                              "ended early", "not JSON", ""]):
        check(part in j["errors"][i] and bool(j["errors"][i]) == (0 < i < 9), f"error {i}: {part}", j["errors"][i])
    near(j["duration"], 0.85, "failures: the duration is that of all")
    spread(j, "tpot", [0.05, 0.05], "failures leave the times")
    check("Failed requests:                         8" in r.out and "Error 0: HTTP 400: too long" in r.out, "failures are shown", r.out)
    equal(r.rc, 0, "failures: exit status 0 while some completed")
    r = serve(Stub(lambda i, b: [("status", 500, "")]).port, "--num-prompts", 2, *SMALL)
    equal((r.rc, r.json["completed"], r.json["mean_ttft_ms"]), (1, 0, 0.0), "all failed: exit status 1, zeros")


def one_failed_of_ten():
    first = [0.1 * (i + 1) for i in range(10)]
    s = Stub(lambda i, b: tokens(1, first[i], 0)[:1] + [text("a", "length"), usage(5, 1), "DONE"] if i != 4 else [("status", 500, "x")])
    j = serve(s.port, "--num-prompts", 10, *SMALL, "--metric-percentiles", "25,50,99,99.9").json
    want = [x for i, x in enumerate(first) if i != 4]
    spread(j, "ttft", want, "one failed of ten")
    near(j["p25_ttft_ms"] / 1e3, percentile(want, 25), "one failed of ten: p25")
    near(j["p99.9_ttft_ms"] / 1e3, percentile(want, 99.9), "one failed of ten: p99.9")
    equal(j["mean_tpot_ms"], 0.0, "one token each: no TPOT")


def cut():
    # every write cut into single bytes, comments between, CRLF line ends
    steps = [": keep-alive\n\n", 0.05, text("é😀"), 0.05, ": x\n\n", "event: m\r\ndata: {\"choices\":\r\ndata: [{\"text\":\"b\",\"finish_reason\":null}]}\r\n\r\n",
             0.05, text("c", "stop"), usage(5, 3), "DONE"]
    r = serve(Stub(lambda i, b: steps, slice_bytes=1).port, "--num-prompts", 3, *SMALL)
    equal((r.json["completed"], r.json["generated_texts"]), (3, ["é😀bc"] * 3), "streams cut at every byte")
    spread(r.json, "itl", [0.05] * 6, "streams cut at every byte")


def without_usage():
    steps = [0.02, text(" the cat"), 0.02, text(" sat", "stop"), "DONE"]
    r = serve(Stub(lambda i, b: steps).port, "--num-prompts", 1, *SMALL)
    check(r.json["total_output_tokens"] >= 2 and "without usage" in r.out, "no usage: the text is tokenized and it is said", r.json["output_lens"])
    equal(r.json["total_input_tokens"], 5, "no usage: the prompt counts as drawn")


def arrivals():
    s = Stub(lambda i, b: tokens(2, 0.01, 0.01))
    r = serve(s.port, "--num-prompts", 40, "--request-rate", 40, "--burstiness", 1000000, *SMALL)
    st = sorted(r.json["start_times"])
    gaps = [b - a for a, b in zip(st, st[1:])]
    check(all(abs(g - 0.025) < 0.02 for g in gaps), "high burstiness: even gaps", gaps)
    near(st[-1] - st[0], 39 / 40, "the last request starts at N / rate", SLACK)
    equal((r.json["request_rate"], r.json["burstiness"], r.json["max_concurrency"]), (40.0, 1000000.0, None), "traffic keys")
    check("Request rate configured (RPS):           40.00" in r.out, "the rate is in the report")
    r = serve(s.port, "--num-prompts", 30, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", 20, "--ramp-up-end-rps", 60,
              "--burstiness", "inf", *SMALL)
    st = sorted(r.json["start_times"])
    check(st[1] - st[0] > st[-1] - st[-2] and abs(st[-1] - st[0] - sum(1 / (20 + 40 * i / 29) for i in range(1, 30))) < SLACK,
          "ramp-up: gaps shrink as 1 / rate", st)
    equal([e["rps"] for e in r.json["rps_change_events"]], list(range(20, 61)), "ramp-up: each rate passed is noted")
    r = serve(s.port, "--num-prompts", 6, "--max-concurrency", 2, *SMALL, "--percentile-metrics", "ttft,client_queue_time")
    near(r.json["mean_client_queue_time_ms"] / 1e3, (0 + 0 + 0.02 * 2 + 0.04 * 2) / 6, "waiting under --max-concurrency is not in TTFT")
    spread(r.json, "ttft", [0.01] * 6, "waiting under --max-concurrency is not in TTFT")


def warm_and_cached():
    metrics = {"hits": 0}

    def page():
        metrics["hits"] += 40
        return (f'# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total{{engine="0",model_name="x"}} {2 * metrics["hits"]}\n'
                f'vllm:prefix_cache_hits_total{{engine="0",model_name="x"}} {metrics["hits"]}.0\n'
                f'vllm:spec_decode_num_drafts_total{{e="0"}} {metrics["hits"] / 4}\nvllm:spec_decode_num_draft_tokens_total{{e="0"}} {metrics["hits"]}\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{e="0"}} {metrics["hits"] / 2}\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{e="0",position="0"}} {metrics["hits"] / 5}\n'
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{e="0",position="1"}} {metrics["hits"] / 10}\n')
    s = Stub(lambda i, b: tokens(2, 0.01, 0.01), get={"/metrics": page})
    r = serve(s.port, "--num-prompts", 1, "--num-warmups", 3, "--ready-check-timeout-sec", 5, *SMALL)
    prompts = [b["prompt"] for p, _, b in s.seen if p == "/v1/completions"]
    equal(len(prompts), 5, "ready check, three warm-ups, one measured request")
    equal(len(set(prompts)), 5, "no warm-up prompt is a measured prompt")
    check("prefix cache held 50.0% of the prompt tokens" in r.out, "a warm prefix cache is said", r.out)
    equal((r.json["prefix_cache_queries"], r.json["prefix_cache_hits"]), (80, 40), "prefix cache counters")
    equal((r.json["spec_decode_acceptance_rate"], r.json["spec_decode_acceptance_length"], r.json["spec_decode_num_drafts"],
           r.json["spec_decode_draft_tokens"], r.json["spec_decode_accepted_tokens"], r.json["spec_decode_per_position_acceptance_rates"]),
          (50.0, 3.0, 10, 40, 20, [0.8, 0.4]), "speculative decoding")
    check("---------------Speculative Decoding---------------" in r.out and "  Position 1:                            40.00" in r.out,
          "speculative decoding is in the report", r.out)


def other_tokenizer():
    # a server that counts otherwise than the local tokenizer: prompts are rewritten until it counts what was asked for
    words = []

    def tokenize(b):
        w = b["prompt"].split(" ")
        for x in w:
            if x not in words:
                words.append(x)
        t = [words.index(x) for x in w]
        return 200, json.dumps({"count": len(t), "tokens": t})

    s = Stub(lambda i, b: [0.01, text("a", "length"), usage(len(b["prompt"].split(" ")), 1), "DONE"],
             post={"/tokenize": tokenize, "/detokenize": lambda b: (200, json.dumps({"prompt": " ".join(words[t] for t in b["tokens"])}))})
    r = serve(s.port, "--num-prompts", 30, "--random-input-len", 40, "--random-range-ratio", 0.5, "--random-output-len", 1)
    check("tokenizer mismatch" in r.out, "another tokenizer at the server is said", r.out[:1500])
    equal((r.json["completed"], r.json["prompts_of_other_length"]), (30, 0), "another tokenizer at the server: lengths by its count")
    # one that cannot be reached: the difference shows in the report
    s = Stub(lambda i, b: [0.01, text("a", "length"), usage(7, 1), "DONE"])
    r = serve(s.port, "--num-prompts", 3, *SMALL)
    check(r.json["prompts_of_other_length"] == 3 and "the worst by +2 tokens" in r.out, "prompts that the server counts otherwise are counted", r.out[-900:])


def late_server():
    # a server that comes up 1.5 s after the client, and refuses its first request
    with socket.socket() as x:
        x.bind(("127.0.0.1", 0))
        port = x.getsockname()[1]
    asked = []

    def script(i, b):
        asked.append(i)
        return [("status", 503, "starting")] if len(asked) == 1 else tokens(2, 0.01, 0.01)
    threading.Timer(1.5, lambda: Stub(script, port=port)).start()
    r = serve(port, "--num-prompts", 3, "--ready-check-timeout-sec", 60, *SMALL)
    check(r.rc == 0 and r.json["completed"] == 3 and len(asked) == 5 and "Initial test run completed." in r.out, "a server that comes up late is waited for", r.out[-800:])
    r = serve(port + 1, "--num-prompts", 3, "--ready-check-timeout-sec", 1, *SMALL)
    check(r.rc == 1 and "Initial test run failed" in r.err, "and not for ever", r.err)


def late_client():
    s = Stub(lambda i, b: tokens(2, 0.05, 0.01))
    j = serve(s.port, "--num-prompts", 20, "--request-rate", 100, *SMALL).json
    check(0 <= j["client_mean_send_lateness_ms"] <= j["client_p99_send_lateness_ms"] <= j["client_max_send_lateness_ms"] < 1e3 * SLACK,
          "lateness of the client", j)
    check(0 < j["client_p99_loop_delay_ms"] <= j["client_max_loop_delay_ms"] < 1e3 * SLACK, "delay of the client's loop", j)


for t in (one_to_ten, published_identity, lengths, chunks, chat, failing, one_failed_of_ten, cut, without_usage, arrivals, warm_and_cached,
          other_tokenizer, late_server, late_client):
    t()
done()
