#!/usr/bin/env python3
"""The command line: flags as vLLM has them, what is refused and how, help, chat and inspect."""
from common import *

need_model()
DOC1 = """--tensor-parallel-size 8 --pipeline-parallel-size 1 --distributed-executor-backend mp --max-model-len 65536 --gpu-memory-utilization 0.90
--kv-cache-dtype fp8_e4m3 --max-num-seqs 256 --max-num-batched-tokens 16384 --long-prefill-token-threshold 4096 --enable-prefix-caching --async-scheduling
--trust-remote-code --compilation-config""".split() + ['{"cudagraph_mode":"FULL_AND_PIECEWISE","max_cudagraph_capture_size":256}']
DOC2 = """--served-model-name glm-5-3-flash-fp8 --data-parallel-size 8 --enable-expert-parallel --trust-remote-code --max-model-len 131072
--max-num-batched-tokens 8192 --max-num-seqs 1024 --gpu-memory-utilization 0.8 --no-enable-prefix-caching --distributed-timeout-seconds 7200
--enable-auto-tool-choice --tool-call-parser glm47 --reasoning-parser glm47 --attention-backend ROCM_AITER_MLA_SPARSE --kv-cache-dtype fp8""".split()
for name, flags, size in (("first", DOC1, "--tensor-parallel-size 8"), ("second", DOC2, "--data-parallel-size 8")):
    r = run("serve", TINY, "--port", "0", *flags)
    check(r.returncode == 1 and size in r.stderr and "only 1 is possible" in r.stderr, f"the {name} command line parses; its parallel size is refused clearly", r.stderr)
one = lambda f: ["1" if i and f[i - 1] in ("--tensor-parallel-size", "--data-parallel-size") else x for i, x in enumerate(f)]
for name, flags in (("first", one(DOC1)), ("second", one(DOC2))):
    with Server(*flags) as s:
        check("accepted without effect" in s.text() and "GPU KV cache size: " in s.text(), f"the {name} command line with one rank serves")
        equal(s.chat("Please add 3 and 2.").json["choices"][0]["message"]["content"], "3 + 2 = 5.", "FP8 cache: right answer")
    if name == "second":
        check("glm-5-3-flash-fp8" in s.text() if os.path.exists(s.log.name) else True, "name")

def bad(text, *flags, code=2, command="serve"):
    r = run(command, *([TINY] if command else []), *flags)
    check(r.returncode == code and text in r.stderr, f"{' '.join(map(str, flags))[:60]}: status {code}, '{text[:60]}'", r.stderr)

bad("glimmer serve: error: argument --dtype: invalid choice: 'float8'", "--dtype", "float8")
bad("usage: glimmer serve", "--dtype", "float8")
bad("argument --swap-space: is a vLLM flag that glimmer does not have", "--swap-space", "4")
bad("argument -sc: is a vLLM flag that glimmer does not have", "-sc", "{}")
bad("unrecognized arguments: --nonsense", "--nonsense")
bad("argument --port: expected one argument", "--port")
bad("argument --port: invalid int value: 'x'", "--port", "x")
bad("argument --port: 70000 is not between", "--port", "70000")
bad("did you mean 1.5k?", "--max-model-len", "1.5K")
for v in ("abc", "1x", "", "k", "0x10", "1e3", "--", "1.5"):
    bad("argument --max-model-len", f"--max-model-len={v}")
bad("argument --watermark", "--watermark", "1")
bad("invalid tool call parser: hermes (chose from { glm45,glm47,none })", "--tool-call-parser", "hermes")
bad("Error: --enable-auto-tool-choice requires --tool-call-parser", "--enable-auto-tool-choice", "--tool-call-parser", "none")
bad("argument --override-generation-config", "--override-generation-config", "{x")
bad("User-specified max_model_len (200000) is greater than the derived max_model_len", "--port", "0", "--max-model-len", "200k")
bad("max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (16).", "--port", "0", "--max-num-batched-tokens", "8", "--max-num-seqs", "16")
bad("To serve at least one request with the model's max seq len (100000)", "--port", "0", "--kv-cache-memory-bytes", "4M", "--max-model-len", "100k", "--max-num-seqs", "2", code=1)
bad("the following arguments are required: MODEL", command="serve") if False else None
r = run("serve")
check(r.returncode == 2 and "the following arguments are required: MODEL" in r.stderr, "no MODEL: status 2", r.stderr)
r = run("fly")
check(r.returncode == 2 and "'fly' is not a command" in r.stderr, "unknown command: status 2")

r = run("serve", "--help")
check(r.returncode == 0 and all(g in r.stdout for g in ("model:", "device:", "scheduler:", "cache:", "frontend:")) and "--max-num-seqs" in r.stdout
      and "tokens" in r.stdout and "[20]" in r.stdout, "--help shows groups, and each flag with unit and default")
r = run("serve", "--help=all")
check("[20]" in r.stdout and "--[no-]enable-chunked-prefill" in r.stdout and "--distributed-executor-backend" in r.stdout, "--help=all names the ignored ones too")
r = run("serve", "--help=scheduler")
check("--max-num-seqs" in r.stdout and "--port" not in r.stdout, "--help=GROUP")
r = run("serve", "--help=logprobs")
check("--max-logprobs" in r.stdout and "--watermark" not in r.stdout, "--help=WORD")

with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
    f.write("# settings\nmodel: %s\nserved-model-name:\n  - a\n  - 'b'\nmax_model_len: 3k   # short\nenable-log-requests: true\noverride-generation-config: {\"top_k\": 3}\nport: 1\n" % TINY)
    f.flush()
    with Server("--config", f.name) as s:
        equal([x["id"] for x in s.get("/v1/models").json["data"]], ["a", "b"], "--config: a YAML list")
        equal(s.get("/v1/models").json["data"][0]["max_model_len"], 3000, "--config: a value; the command line beats the file")
        s.complete("a", max_tokens=1)
        time.sleep(0.1)
        check("Received request cmpl-" in s.text() and '"top_k": 3' in s.text(), "--config: a boolean and JSON", s.text()[-1500:])
    f.write("a:\n  b: 1\n")
    f.flush()
    r = run("serve", TINY, "--config", f.name)
    check(r.returncode == 2 and "flat map" in r.stderr, "--config: nested YAML is refused", r.stderr)
with Server("--max_model_len=2K", "--served_model_name", "x", "y", "--enforce-eager", "-O3", "--compilation-config.cudagraph_mode", "FULL", "-cc.level=3", "-tp", "1",
            "--hf-overrides.text_config.index_topk", "128", "--no-enable-chunked-prefill", "--api-key", "secret-key") as s:
    check("'max_model_len': 2048" in s.text() and "'served_model_name': [\"x\",\"y\"]" in s.text() and "secret-key" not in s.text(), "underscores, '=', dotted keys, aliases; keys are not logged", s.text()[:1500])
with Server("--load-format", "dummy", "--max-model-len", "auto", "--kv-cache-memory-bytes", "16M", "--max-num-seqs", "4", "--cpu-isa", "reference", "--threads", "1") as s:
    check("isa=reference threads=1" in s.text() and "Auto-fit max_model_len: reduced from 131072 to " in s.text(), "dummy weights, automatic length, device flags", s.text())
    check(s.complete("a", max_tokens=3).status == 200, "dummy weights answer")

r = run("inspect", TINY)
check(r.returncode == 0 and "bytes a token" in r.stdout and "bytes a running sequence" in r.stdout and "no problem found" in r.stdout, "inspect", r.stdout)
with tempfile.TemporaryDirectory() as d:
    for n in os.listdir(TINY):
        if n != "model.safetensors":
            os.symlink(os.path.join(TINY, n), os.path.join(d, n))
    with open(os.path.join(TINY, "model.safetensors"), "rb") as a, open(os.path.join(d, "model.safetensors"), "wb") as b:
        b.write(a.read()[:-1])
    r = run("inspect", d)
    check(r.returncode == 1 and "PROBLEM" in r.stdout and "model.safetensors" in r.stdout and "tokenizer " in r.stdout, "inspect names a truncated file and goes on", r.stdout)
    r = run("serve", d, "--port", "0")
    check(r.returncode == 1 and "model.safetensors" in r.stderr, "serve refuses it", r.stderr)

r = run("chat", TINY, "--temperature", "0", "-p", "Please add 3 and 2.")
check(r.returncode == 0 and "3 + 2. So 3 + 2 = 5.\n3 + 2 = 5." in r.stdout and "tokens/s" in r.stdout, "chat -p: thoughts, then the answer", r.stdout + r.stderr)
r = run("chat", TINY, "--temperature", "0", "--no-show-reasoning", stdin="Please add 3 and 2.\nWho are you?\n")
check(r.returncode == 0 and r.stdout.count("tokens/s") == 2 and "So 3" not in r.stdout and "tiny demonstration model" in r.stdout, "chat: two turns from a pipe", r.stdout + r.stderr)
p = subprocess.Popen([BIN, "chat", TINY, "--temperature", "1", "--max-tokens", "100000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
p.stdin.write("Please add 3 and 2.\n")
p.stdin.flush()
time.sleep(0.5)
p.send_signal(signal.SIGINT)
time.sleep(0.5)
try:
    p.stdin.write("Who are you?\n")
    p.stdin.close()
except OSError:
    pass
out = p.stdout.read()
check(p.wait(20) == 0 and out.count("prompt tokens") == 2, "chat: Ctrl-C keeps the session", out)
done()
