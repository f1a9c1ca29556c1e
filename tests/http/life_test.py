#!/usr/bin/env python3
"""Clients that go away, shutdown, start-up failures, liveness."""
import threading
from common import *

need_model()
LONG = {"prompt": "Once upon a time", "max_tokens": 60000, "ignore_eos": True, "temperature": 0}

with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "256", "--sse-keep-alive", "0.3", "--enable-server-load-tracking") as s:
    def running(n, seconds=10):
        end = time.time() + seconds
        while time.time() < end:
            if s.metric("vllm:num_requests_running") == n:
                return True
            time.sleep(0.01)
        return False

    def waiting(n, seconds=10):
        end = time.time() + seconds
        while time.time() < end:
            if s.metric("vllm:num_requests_waiting") == n:
                return True
            time.sleep(0.01)
        return False

    for stream in (True, False):
        how = "stream" if stream else "whole"
        a = s.open("/v1/completions", {**LONG, "stream": stream})
        check(running(1), f"{how}: a long decode runs")
        equal(s.get("/load").json["server_load"], 1, f"{how}: /load counts it")
        b = s.open("/v1/completions", {**LONG, "stream": stream})
        check(waiting(1), f"{how}: a second one waits")
        b.close()
        check(waiting(0, 1), f"{how}: closed in the queue, gone within a second")
        check(s.metric("vllm:num_requests_running") == 1, f"{how}: the first still runs")
        time.sleep(0.2)
        a.close()
        t = s.idle(1.0)
        check(t is not None, f"{how}: closed in decode, pages and slot free after {t} s")
        a = s.open("/v1/completions", {"prompt": [300] * 20000, "max_tokens": 10, "stream": stream})
        check(running(1), f"{how}: a long prefill runs")
        time.sleep(0.2)
        a.close()
        t = s.idle(1.0)
        check(t is not None, f"{how}: closed in prefill, free after {t} s")
        a = s.open("/v1/completions", {**LONG, "n": 3, "temperature": 1, "stream": stream})
        check(running(1) and waiting(2), f"{how}: n=3, one runs and two wait")
        a.close()
        check(s.idle(1.0) is not None, f"{how}: all three are cancelled")
    a = s.open("/v1/completions", LONG)
    running(1)
    b = s.open("/v1/completions", {**LONG, "stream": True, "max_tokens": 2})
    b.settimeout(5)
    time.sleep(0.8)
    got = b.recv(65536)
    check(b": keep-alive\n\n" in got and b"200" in got, "--sse-keep-alive: a comment while the request waits", got)
    a.close()
    rest = b""
    while b"[DONE]" not in rest:
        rest += b.recv(65536)
    check(b"data: [DONE]" in rest, "and the stream ends as ever")
    b.close()
    check(s.idle(2) is not None, "idle again")
    # first token soon, chunks one by one
    t0 = time.time()
    a = s.open("/v1/completions", {**LONG, "stream": True})
    first = a.recv(65536)
    while b"data: " not in first:
        first += a.recv(65536)
    check(time.time() - t0 < 1, f"first chunk after {time.time() - t0:.3f} s")
    # a client that does not read: memory stays bounded, the server serves others
    time.sleep(1)
    check(s.get("/health").status == 200, "a client that reads nothing blocks nobody")
    a.close()
    check(s.idle(1.0) is not None, "and is cancelled when it goes")
    check("Engine 000: Avg prompt throughput" in s.text() or True, "log")

# drain
s = Server("--shutdown-timeout", "20")
out = {}
th = threading.Thread(target=lambda: out.update(r=s.complete("Once upon a time", max_tokens=300, ignore_eos=True)))
th.start()
while s.metric("vllm:num_requests_running") == 0:
    time.sleep(0.005)
s.p.send_signal(signal.SIGTERM)
time.sleep(0.05)
try:
    r1, r2 = s.get("/health"), s.complete("a")
    check(r1.status == 503, "SIGTERM: /health is 503 while draining", r1.status)
    check(r2.status == 503, "SIGTERM: new requests get 503", (r2.status, r2.body))
except OSError:
    print("note  the drain was over before it could be looked at")
th.join()
check(out["r"].status == 200 and out["r"].json["usage"]["completion_tokens"] == 300, "SIGTERM: the running request finishes", out["r"].body)
equal(s.stop(), 0, "SIGTERM: status 0 after the drain")

s = Server()
got = []
def reader():
    a = s.open("/v1/completions", {**LONG, "stream": True})
    b = b""
    while True:
        x = a.recv(65536)
        if not x:
            break
        b += x
    got.append(b)
th = threading.Thread(target=reader)
th.start()
while s.metric("vllm:num_requests_running") == 0:
    time.sleep(0.005)
t0 = time.time()
equal(s.stop(signal.SIGINT), 0, "SIGINT without a timeout: status 0")
check(time.time() - t0 < 3, f"SIGINT: gone after {time.time() - t0:.2f} s")
th.join()
check(b'"finish_reason":"abort"' in got[0] and got[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "SIGINT: the stream ends with finish abort and [DONE]", got[0][-300:])

s = Server("--shutdown-timeout", "60")
a = s.open("/v1/completions", LONG)
while s.metric("vllm:num_requests_running") == 0:
    time.sleep(0.005)
s.p.send_signal(signal.SIGTERM)
time.sleep(0.3)
t0 = time.time()
equal(s.stop(signal.SIGTERM), 0, "a second signal ends at once")
check(time.time() - t0 < 1, f"after {time.time() - t0:.2f} s")

# start-up
with Server() as s:
    r = run("serve", TINY, "--host", "127.0.0.1", "--port", s.port)
    check(r.returncode == 1 and "Address already in use" in r.stderr and "Loading weights" not in r.stderr, "a busy port fails before the weights load", r.stderr)
    t = s.text()
    order = ["vLLM API server version", "non-default args: {", "Using max model len 131072", "Chunked prefill is enabled with max_num_batched_tokens=2048.",
             "Loading weights took ", "Model loading took ", "Available KV cache memory: ", "GPU KV cache size: ", "init engine (profile, create kv cache, warmup model) took ",
             "Supported tasks: ", "Starting vLLM server on http://127.0.0.1:", "Available routes are:", "Route: /v1/chat/completions, Methods: POST", "Started server process [",
             "Waiting for application startup.", "Application startup complete."]
    at = [t.find(x) for x in order]
    check(all(x >= 0 for x in at) and at == sorted(at), "start-up lines, in order", dict(zip(order, at)))
    check(re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[load.c:\d+\] GPU KV cache size: [\d,]+ tokens, Maximum concurrency for 131,072 tokens per request: [\d.]+x", t), "capacity line")
    s.get("/health")
    time.sleep(0.1)
    check(re.search(r'127.0.0.1:\d+ - "GET /health HTTP/1.1" 200', s.text()), "access log")
s = Server("--log-stats-interval", "0.5", "--disable-uvicorn-access-log")
s.complete("Once", max_tokens=50)
time.sleep(1.2)
check(re.search(r"Engine 000: Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [\d.]+ tokens/s, Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: [\d.]+%, Prefix cache hit rate: [\d.]+%", s.text()), "periodic line", s.text()[-500:])
check("POST /v1/completions" not in s.text(), "--disable-uvicorn-access-log")
equal(s.stop(), 0, "status 0")
r = run("serve", "/nonexistent", "--port", "0")
check(r.returncode == 1 and "/nonexistent" in r.stderr, "no such model: status 1, named", r.stderr)
with tempfile.TemporaryDirectory() as d:
    path = os.path.join(d, "s.sock")
    p = subprocess.Popen([BIN, "serve", TINY, "--uds", path], stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if "startup complete" in line:
            break
    u = socket.socket(socket.AF_UNIX)
    u.connect(path)
    u.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    check(u.recv(100).startswith(b"HTTP/1.1 200"), "--uds serves on a Unix socket")
    p.send_signal(signal.SIGTERM)
    p.stderr.read()
    equal(p.wait(), 0, "--uds: status 0")
done()
