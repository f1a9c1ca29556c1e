#!/usr/bin/env python3
"""/metrics: names and labels that dashboards query; counts after known requests; gauges at rest after random aborts."""
import random, threading
from common import *

need_model()
with Server("--max-num-seqs", "16", "--max-num-batched-tokens", "256", "--served-model-name", "m\"x") as s:
    text = s.get("/metrics").body.decode()
    lab = 'engine="0",model_name="m\\"x"'
    for n in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
              "prefix_cache_queries_total", "prefix_cache_hits_total"):
        check(f"vllm:{n}{{{lab}}} " in text, f"vllm:{n}")
    for n in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
              "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
              "request_generation_tokens", "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n", "request_prefill_kv_computed_tokens",
              "iteration_tokens_total"):
        check(f'vllm:{n}_bucket{{{lab},le="+Inf"}} ' in text and f"vllm:{n}_sum{{{lab}}} " in text and f"vllm:{n}_count{{{lab}}} " in text, f"vllm:{n} histogram")
    les = re.findall(r'vllm:time_to_first_token_seconds_bucket\{[^}]*le="([^"]+)"', text)
    equal(les, "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf".split(), "TTFT buckets")
    check('vllm:request_success_total{' + lab + ',finished_reason="stop"} ' in text, "request_success by reason")
    check("vllm:cache_config_info{" in text and "process_resident_memory_bytes " in text, "cache_config_info and process_*")
    check(all(re.fullmatch(r'[a-zA-Z_:][\w:]*(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? [-+.\deEinfNa]+', l) for l in text.splitlines() if l[0] != "#"), "every line is well-formed")

    # E1: n=5
    r = s.complete("Once upon a time", n=5, temperature=1, max_tokens=7, ignore_eos=True).json
    p = r["usage"]["prompt_tokens"]
    equal(s.metric("vllm:prompt_tokens_total"), 5 * p, "n=5: prompt_tokens_total counts each engine request")
    equal(s.metric("vllm:generation_tokens_total"), 35, "n=5: generation_tokens_total")
    equal(s.metric("vllm:request_success_total", finished_reason="length"), 5, "n=5: five engine requests finished by length")
    equal(s.metric("vllm:request_params_n_count"), 1, "request_params_n: once a request")
    equal(s.metric("vllm:request_params_n_sum"), 5, "request_params_n is 5")
    # E2: a prompt of several chunks
    before = s.metrics()
    s.complete([300] * 1200, max_tokens=3, ignore_eos=True)
    after = s.metrics()
    for n in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
              "request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens", "request_time_per_output_token_seconds", "request_max_num_generation_tokens"):
        k = f"vllm:{n}_count{{{lab}}}"
        equal(after[k] - before[k], 1, f"a prompt of five chunks: {n} +1")
    k = f"vllm:inter_token_latency_seconds_count{{{lab}}}"
    equal(after[k] - before[k], 2, "inter_token_latency: outputs after the first")
    # a stop string is a stop, not an abort
    b = s.metric("vllm:request_success_total", finished_reason="stop")
    a0 = s.metric("vllm:request_success_total", finished_reason="abort")
    s.complete(prompts()[1]["text"], max_tokens=4000, ignore_eos=True, stop=["= 5"])
    s.idle()
    equal((s.metric("vllm:request_success_total", finished_reason="stop") - b, s.metric("vllm:request_success_total", finished_reason="abort") - a0), (1, 0), "a stop string counts as stop")
    equal(s.metric("http_requests_total", handler="/v1/completions", status="2xx"), 3, "http_requests_total")
    check(not any("/metrics" in k for k in s.metrics() if k.startswith("http_")), "/metrics itself is left out")
    s.get("/nowhere")
    check(s.metric("http_requests_total", handler="none", status="4xx") == 1, "unknown paths are one series")

    # E3: random aborts
    rng = random.Random(7)
    def client(n):
        for _ in range(n):
            body = {"prompt": [300] * rng.choice((1, 5, 300, 2000)), "max_tokens": rng.choice((1, 20, 2000)), "ignore_eos": True, "stream": rng.random() < .5,
                    "n": rng.choice((1, 1, 3)), "temperature": 1, "stop": rng.choice((None, ["e"]))}
            try:
                k = s.open("/v1/completions", body)
                if rng.random() < .2:
                    k.recv(4096)
                time.sleep(rng.random() * .03)
                k.close()
            except OSError:
                pass
    ts = [threading.Thread(target=client, args=(125,)) for _ in range(8)]
    [t.start() for t in ts]
    low = 0
    while any(t.is_alive() for t in ts):
        low = min([low] + [v for v in s.metrics().values() if v == v])
        time.sleep(0.05)
    check(low >= 0, "no value was ever negative", low)
    t = s.idle(5)
    check(t is not None, f"1,000 random aborts: running = waiting = 0, cache and slots free ({t} s)")
    m = s.metrics()
    sub = sum(v for k, v in m.items() if k.startswith("vllm:request_success_total"))
    check(m[f"vllm:time_to_first_token_seconds_count{{{lab}}}"] <= sub, "no more TTFT samples than requests", (m[f"vllm:time_to_first_token_seconds_count{{{lab}}}"], sub))
    equal(s.chat("Please add 3 and 2.").json["choices"][0]["message"]["content"], "3 + 2 = 5.", "and it still answers")
done()
