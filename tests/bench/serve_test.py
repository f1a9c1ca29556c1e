"""glimmer bench serve against glimmer serve: the published loop, every data set, forms of the report and of the file."""
import json, os, pty, re, shutil, signal, subprocess, tempfile, time
from common import BIN, TINY, Run, check, done, equal
from server import Server
from stub import Stub, text, usage

REPORT = r"""============ Serving Benchmark Result ============
Successful requests:                     6         
Failed requests:                         0         
Maximum request concurrency:             3         
Request rate configured \(RPS\):           200\.00    
Benchmark duration \(s\):                  (\d+\.\d\d) +
Total input tokens:                      120       
Total generated tokens:                  24        
Request throughput \(req/s\):              \d+\.\d\d +
Request goodput \(req/s\):                 \d+\.\d\d +
Output token throughput \(tok/s\):         \d+\.\d\d +
Peak output token throughput \(tok/s\):    \d+\.00 +
Peak concurrent requests:                [1-6]\.00      
Total token throughput \(tok/s\):          \d+\.\d\d +
---------------Time to First Token----------------
Mean TTFT \(ms\):                          \d+\.\d\d +
Median TTFT \(ms\):                        \d+\.\d\d +
P50 TTFT \(ms\):                           \d+\.\d\d +
P99\.9 TTFT \(ms\):                         \d+\.\d\d +
-----Time per Output Token \(excl\. 1st token\)------
Mean TPOT \(ms\):                          \d+\.\d\d +
Median TPOT \(ms\):                        \d+\.\d\d +
P50 TPOT \(ms\):                           \d+\.\d\d +
P99\.9 TPOT \(ms\):                         \d+\.\d\d +
---------------Inter-token Latency----------------
Mean ITL \(ms\):                           \d+\.\d\d +
Median ITL \(ms\):                         \d+\.\d\d +
P50 ITL \(ms\):                            \d+\.\d\d +
P99\.9 ITL \(ms\):                          \d+\.\d\d +
----------------End-to-end Latency----------------
Mean E2EL \(ms\):                          \d+\.\d\d +
Median E2EL \(ms\):                        \d+\.\d\d +
P50 E2EL \(ms\):                           \d+\.\d\d +
P99\.9 E2EL \(ms\):                         \d+\.\d\d +
==================================================
"""
KEYS = ["date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "gpu", "run", "request_rate", "burstiness",
        "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "start_times",
        "generated_texts", "errors", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"]
KEYS += [f"{k}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el") for k in ("mean", "median", "std", "p50", "p99.9")]


def published_loop(s, d):
    # the loop of the published benchmark with its flags; `vllm` is a link to this program
    os.symlink(BIN, os.path.join(d, "vllm"))
    script = f"""
    set -eu
    for shape in 64:8 96:12; do I=${{shape%%:*}}; O=${{shape##*:}}
      for C in 1 2 4; do
        vllm bench serve --model tiny --base-url {s.url} --tokenizer {TINY} --dataset-name random --random-input-len $I \
          --random-output-len $O --random-range-ratio 0.0 --num-prompts $C --max-concurrency $C --num-warmups 1 --temperature 0 \
          --ignore-eos --save-result --result-dir {d}/out --result-filename r_${{I}}_${{O}}_$C.json
      done
    done"""
    p = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, env=dict(os.environ, PATH=d + ":" + os.environ["PATH"]))
    equal(p.returncode, 0, "the published loop runs")
    for i, o in ((64, 8), (96, 12)):
        for c in (1, 2, 4):
            with open(f"{d}/out/r_{i}_{o}_{c}.json") as f:
                j = json.load(f)
            row = [j[k] for k in ("duration", "completed", "output_throughput", "total_token_throughput", "mean_ttft_ms", "median_ttft_ms",
                                  "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms")]
            check(j["completed"] == c and all(x > 0 for x in row), f"{i}/{o} at {c}: all keys that the loop reads", row)
            equal((j["total_input_tokens"], j["total_output_tokens"], j["prompts_of_other_length"]), (i * c, o * c, 0), f"{i}/{o} at {c}: lengths")
            check(abs(j["output_throughput"] * j["duration"] - o * c) < 1e-6 * o * c, f"{i}/{o} at {c}: throughput x duration = tokens")
    check("WARNING: the server's counters" not in p.stdout, "the server's counters agree", p.stdout[-3000:])


def forms(s, d):
    r = Run("serve", "--base-url", s.url, "--model", "tiny", "--tokenizer", TINY, "--num-prompts", 6, "--random-input-len", 20, "--random-output-len", 4,
            "--max-concurrency", 3, "--request-rate", 200, "--goodput", "ttft:60000", "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--metric-percentiles", "50,99.9", "--temperature", 0, "--save-result", "--save-detailed", "--result-dir", d + "/deep/er", "--label", "lab",
            "--metadata", "gpu=none", "run = 7")
    equal(r.rc, 0, "forms: exit status")
    at = r.out.find("=" * 12 + " Serving")
    check(re.match(REPORT, r.out[at:]), "the report is vLLM's, byte for byte", r.out[at:])
    for line in ("Starting initial single prompt test run...", "Skipping endpoint ready check.", "Starting main benchmark run...",
                 "Traffic request rate: 200.0", "Burstiness factor: 1.0 (Poisson process)", "Maximum request concurrency: 3"):
        check(f"\n{line}\n" in r.out, f"before the run: {line}", r.out[:1500])
    names = os.listdir(d + "/deep/er")
    check(len(names) == 1 and re.fullmatch(r"lab-200\.0qps-concurrency3-tiny-\d{8}-\d{6}\.json", names[0]), "the file's name", names)
    with open(os.path.join(d, "deep/er", names[0])) as f:
        t = f.read()
    j = json.loads(t)
    equal([k for k in j][:len(KEYS)], KEYS, "the file's keys and their order")
    equal((j["gpu"], j["run"], j["label"], j["backend"], j["endpoint_type"], j["num_prompts"], j["rtfx"]), ("none", "7", "lab", "openai", "openai", 6, 0.0), "values of the setup")
    check(len(j["generated_texts"]) == 6 and all(isinstance(x, str) for x in j["generated_texts"]), "texts are kept with --save-detailed")
    path = d + "/appended.json"
    for _ in range(2):
        Run("serve", "--base-url", s.url, "--model", "tiny", "--tokenizer", TINY, "--num-prompts", 2, "--random-input-len", 9, "--random-output-len", 2,
            "--temperature", 0, "--append-result", "--result-filename", path)
    with open(path) as f:
        lines = f.read().split("\n")
    check(len(lines) == 2 and all(json.loads(x)["completed"] == 2 for x in lines), "--append-result adds a line", len(lines))
    check("ttfts" not in json.loads(lines[0]) and json.loads(lines[0])["request_rate"] == "inf", "without --save-detailed no lists; the rate is \"inf\"")


def exact_lengths(s):
    r = run(s, "--num-prompts", 300, "--random-input-len", 60, "--random-output-len", 1, "--random-range-ratio", 0.8, "--max-concurrency", 32)
    lens = r.json["input_lens"]
    equal((r.json["completed"], r.json["prompts_of_other_length"], min(lens) >= 11, max(lens) <= 108), (300, 0, True, True), "300 prompts: the server counts what was asked")
    r = run(s, "--num-prompts", 20, "--random-input-len", 1, "--random-output-len", 1)
    equal((r.json["input_lens"], r.json["output_lens"]), ([1] * 20, [1] * 20), "prompts and answers of one token")


def run(s, *args, **k):
    with tempfile.TemporaryDirectory() as d:
        r = Run("serve", "--base-url", s.url, "--tokenizer", TINY, "--temperature", 0, "--save-result", "--save-detailed", "--result-dir", d,
                "--result-filename", "r.json", *args, **k)
        try:
            with open(d + "/r.json") as f:
                r.json = json.load(f)
        except OSError:
            r.json = None
        return r


def sets(s, d):
    with open(d + "/share.json", "w") as f:
        json.dump([{"conversations": [{"value": f"Tell me about number {i} and the cat."}, {"value": "It is a number, and a cat is a cat."}]} for i in range(9)], f)
    r = run(s, "--dataset-name", "sharegpt", "--dataset-path", d + "/share.json", "--num-prompts", 4, "--sharegpt-output-len", 5)
    equal((r.json["completed"], r.json["prompts_of_other_length"]), (4, 0), "sharegpt")
    with open(d + "/custom.jsonl", "w") as f:
        f.writelines(json.dumps({"prompt": f"Question {i}?", "output_tokens": 3 + i}) + "\n" for i in range(3))
    r = run(s, "--dataset-name", "custom", "--dataset-path", d + "/custom.jsonl", "--num-prompts", 3, "--custom-output-len", -1, "--ignore-eos", "--disable-shuffle")
    equal((r.json["output_lens"], r.json["prompts_of_other_length"]), ([3, 4, 5], 0), "custom: output_tokens of the file, ignore_eos")
    with open(d + "/poem.txt", "w") as f:
        f.writelines(f"A line with number {i} in it, of the sea,\n" for i in range(50))
    r = run(s, "--dataset-name", "sonnet", "--dataset-path", d + "/poem.txt", "--num-prompts", 2, "--sonnet-input-len", 200, "--sonnet-prefix-len", 60, "--sonnet-output-len", 4)
    equal((r.json["completed"], r.json["prompts_of_other_length"]), (2, 0), "sonnet")
    r = run(s, "--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path", d + "/custom.jsonl", "--num-prompts", 3, "--output-len", 6, "--ignore-eos")
    equal((r.json["completed"], r.json["output_lens"]), (3, [6, 6, 6]), "chat: custom prompts, the server's template")
    r = run(s, "--backend", "vllm", "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 3, "--extra-body", '{"max_tokens": 2}')
    equal(r.json["output_lens"], [2, 2], "vllm is openai; --extra-body wins")


def first_model(s):
    r = Run("serve", "--base-url", s.url + "/", "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2)
    check(r.rc == 0 and "First model name:" in r.out, "model and tokenizer come from the server where they are local", r.out + r.err)
    check("temperature is not set" in r.out, "a missing temperature is said")


def ids_only():
    with Server("--skip-tokenizer-init") as s:
        r = run(s, "--num-prompts", 5, "--random-input-len", 30, "--random-output-len", 3)
        equal((r.json["completed"], r.json["input_lens"], r.json["output_lens"]), (5, [30] * 5, [3] * 5), "a server without a tokenizer gets ids")
        check("prompts are sent as token ids" in r.out, "and it is said", r.out)
        r = Run("serve", "--base-url", s.url, "--model", TINY, "--skip-tokenizer-init", "--num-prompts", 3, "--random-input-len", 12, "--random-output-len", 2)
        check(r.rc == 0 and "Total input tokens:                      36 " in r.out, "no tokenizer here either", r.out + r.err)


def keys_and_tls(d):
    with Server("--api-key", "sesame") as s:
        r = run(s, "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2)
        check(r.rc == 1 and "HTTP 401" in r.err, "without a key: refused, and why", r.err)
        r = run(s, "--model", "x", "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2)
        check(r.rc == 1 and r.json["failed"] == 2 and "HTTP 401: Unauthorized" in r.out, "without a key all requests fail, and why", r.out[-1500:])
        r = run(s, "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2, env={"OPENAI_API_KEY": "sesame"})
        equal(r.json["completed"], 2, "OPENAI_API_KEY is sent")
        r = run(s, "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2, "--header", "Authorization=Bearer sesame")
        check(r.json["completed"] == 2 and "sesame" not in r.out, "--header is sent and not shown", r.out[:600])
    if not shutil.which("openssl"):
        print("note  no openssl here: TLS is not tested")
        return
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", d + "/k.pem", "-out", d + "/c.pem", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with Server("--ssl-keyfile", d + "/k.pem", "--ssl-certfile", d + "/c.pem") as s:
        r = run(s, "--insecure", "--num-prompts", 8, "--max-concurrency", 4, "--random-input-len", 8, "--random-output-len", 5)
        equal((r.json["completed"], r.json["output_lens"]), (8, [5] * 8), "TLS, any certificate")
        r = run(s, "--num-prompts", 2, "--random-input-len", 8, "--random-output-len", 2)
        check(r.rc == 1 and "certificate" in (r.out + r.err), "TLS: an unknown certificate is refused", (r.out + r.err)[-800:])


def refusals():
    for args, part in ((["--request-rate", "0"], "above 0"), (["--random-range-ratio", "1"], "[0, 1)"), (["--goodput", "x:3"], "not ttft"), (["--backend", "tgi"], "invalid choice"),
                       (["--percentile-metrics", "foo"], "not a metric"), (["--metric-percentiles", "101"], "0 to 100"), (["--metadata", "x"], "KEY=VALUE"),
                       (["--nonsense"], "unrecognized"), (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"), (["--max-concurrency", "0"], "between"),
                       (["--plot-timeline"], "does not have"), (["--backend", "openai-chat", "--endpoint", "/v1/completions"], "chat/completions"),
                       (["--dataset-name", "sharegpt"], "--dataset-path")):
        r = Run("serve", "--base-url", "http://127.0.0.1:9", "--model", "x", "--tokenizer", TINY, *args)
        check(r.rc == 2 and part in r.err, f"refused with status 2: {' '.join(args)}", (r.rc, r.err))
    r = Run("serve", "--base-url", "http://127.0.0.1:9")
    check(r.rc == 1 and "http://127.0.0.1:9/v1/models" in r.err, "no server: said with its address", r.err)
    r = Run("serve", "--base-url", "http://127.0.0.1:9", "--model", "x", "--tokenizer", TINY, "--num-prompts", 2, "--random-input-len", 5)
    check(r.rc == 1, "no server while running", (r.rc, r.out[-600:], r.err))


def terminal():
    s = Stub(lambda i, b: [0.3 * (i + 1), text("a", "length"), usage(5, 1), "DONE"])
    master, slave = pty.openpty()
    args = [BIN, "bench", "serve", "--base-url", f"http://127.0.0.1:{s.port}", "--model", "stub", "--tokenizer", TINY, "--num-prompts", "4", "--random-input-len", "5",
            "--temperature", "0"]
    p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    got = b""
    try:
        while True:
            b = os.read(master, 4096)
            if not b:
                break
            got += b
    except OSError:
        pass
    p.wait(30)
    check(b"| 1/4 [" in got and b"100%|" in got and b"it/s]" in got, "a progress bar on a terminal", got[-300:])
    p = subprocess.run(args + ["--disable-tqdm"], capture_output=True)
    equal(p.stderr, b"", "nothing on stderr elsewhere")
    slow = Stub(lambda i, b: [30, text("a"), "DONE"])
    args[4] = f"http://127.0.0.1:{slow.port}"
    p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(1.5)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=20)[1]
    check(p.returncode == 130 and b"stopped after 0 of 4" in err, "Ctrl-C ends the run", (p.returncode, err))


with tempfile.TemporaryDirectory() as d:
    refusals()
    terminal()
    with Server("--served-model-name", "tiny", TINY) as s:
        published_loop(s, d)
        forms(s, d)
        exact_lengths(s)
        sets(s, d)
        first_model(s)
    ids_only()
    keys_and_tls(d)
done()
