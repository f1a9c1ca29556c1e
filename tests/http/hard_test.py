#!/usr/bin/env python3
"""Hostile and broken requests: sizes, nesting, encodings, header floods, slow senders, many connections."""
import resource, threading
from common import *

need_model()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384) if hard != resource.RLIM_INFINITY else 16384, hard))

with Server("--max-num-seqs", "8") as s:
    worst = [0.0]
    stop = threading.Event()
    def prober():
        while not stop.is_set():
            t0 = time.time()
            if s.get("/health", timeout=10).status != 200:
                worst[0] = 99
            worst[0] = max(worst[0], time.time() - t0)
            time.sleep(0.01)
    th = threading.Thread(target=prober)
    th.start()

    # N1: many wrong items
    for body in ({"messages": [{"role": 5, "content": {"x": "A" * 300}}] * 12000}, {"prompt": ["a"] + [{}] * 1000}, {"prompt": [1] + ["x" * 100] * 12000},
                 {"messages": [{"role": "user", "content": [{"type": "nope", "x": "y" * 50}] * 12000}]}, {"messages": ["x"] * 12000}):
        r = s.post("/v1/chat/completions" if "messages" in body else "/v1/completions", body)
        check(r.status == 400 and len(r.body) < 8192 and b"AAAA" not in r.body, f"12,000 wrong items: 400, {len(r.body)} bytes", r.body)
    # N2: nesting
    for n in (64, 1000, 200000):
        for o, c in (("[", "]"), ('{"a":', "}")):
            for body in (o * n, o * n + ("1" if c == "}" else "") + c * n, '{"messages":' + o * n + ("1" if c == "}" else "") + c * n + "}"):
                r = s.post("/v1/chat/completions", body)
                check(r.status == 400 and len(r.body) < 2000, f"{n} x {o!r} ({len(body)} bytes): 400", (r.status, r.body))
    r = s.chat("x", tools=[{"type": "function", "function": {"name": "f", "parameters": json.loads('{"a":' * 90 + "1" + "}" * 90)}}], max_tokens=1)
    check(r.status in (200, 400), f"a deep schema: {r.status}")
    # N3: encodings
    for b in (b'{"prompt":"\xc4\xe3\xba\xc3"}', b'{"prompt":"\xff"}', b'{"prompt":"\xc0\xaf"}', b'{"prompt":"\xed\xa0\x80"}', b'\x00', b'{"prompt":"a\x00b"}', b'\xef\xbb\xbf{"prompt":"a"}',
              b'{:', b'', b'nul', b'{"prompt":"a"} x', b'{"prompt":"a",}', b'\xff\xfe{\x00'):
        r = s.post("/v1/completions", b)
        ok = r.status == 400 and len(r.body) < 2000
        try:
            r.json
        except Exception:
            ok = False
        check(ok, f"{b[:24]!r}: 400, valid JSON back", (r.status, r.body))
    # N4: heads
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    r = s.raw(head + b"".join(b"X-%d: y\r\n" % i for i in range(10000)) + b"\r\n")
    check(r == b"" or b" 431 " in r[:40] or b" 400 " in r[:40] or b" 413 " in r[:40], "10,000 headers: refused", r[:100])
    r = s.raw(head + b"X-Big: " + b"y" * (1 << 20) + b"\r\n\r\n")
    check(r == b"" or b" 431 " in r[:40] or b" 413 " in r[:40], "a header of 1 MB: refused", r[:100])
    r = s.raw(head + b"X-Request-Id: " + b"z" * (1 << 20) + b"\r\n\r\n")
    check(b"zzzz" not in r, "an id of 1 MB is not sent back", r[:100])
    r = s.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "request_id": "z" * (1 << 20)})
    check(r.status == 200 and len(r.body) < 2000, "a request_id of 1 MB is not sent back", r.body)
    r = s.raw(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    check(r == b"" or b" 414 " in r[:40] or b" 431 " in r[:40] or b" 4" in r[:12], "a path of 1 MB: refused", r[:100])
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n", b"\r\n" * 1000,
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n{}"):
        r = s.raw(junk, timeout=5)
        check(b" 200 " not in r[:20], f"{junk[:30]!r}: no 200", r[:80])
    # N5: big bodies
    big = b"x" * (64 << 20)
    r = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(big))
    check(b" 413 " in r[:40], "64 MiB announced with Expect: 413 before a byte is sent", r[:200])
    r = s.post("/v1/completions", big)
    check(r.status == 413 and r.json["error"]["code"] == 413, "64 MiB sent: 413", (r.status, r.body))
    ch = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 200, timeout=60)
    check(b" 200 " not in ch[:40], "chunked without end: cut off", ch[:100])
    r = s.post("/v1/completions", json.dumps({"prompt": "ab " * (8 << 20), "max_tokens": 1}))
    check(r.status == 400, "24 MiB of text: 400 by its length", (r.status, r.body[:300]))
    r = s.post("/tokenize", {"prompt": "".join(chr(0x4e00 + i % 20000) for i in range(300000))})
    check(r.status == 200, f"/tokenize of 900 kB of CJK: {r.json.get('count')} tokens")
    a = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"prompt\":\"a\"}", timeout=5)
    check(a == b"", "a body shorter than announced waits and is dropped", a[:100])

    # N6: many streams, slow senders
    socks = []
    for i in range(1100):
        try:
            socks.append(s.open("/v1/completions", {"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": True}))
        except OSError as e:
            print("note ", e)
            break
    end = time.time() + 20
    while time.time() < end and (s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting")) < len(socks):
        time.sleep(0.05)
    equal(s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting"), len(socks), f"{len(socks)} open streams are with the engine")
    t0 = time.time()
    check(s.get("/health").status == 200 and time.time() - t0 < 0.5, f"/health beside them: {time.time() - t0:.3f} s")
    slow = []
    for i in range(1000):
        k = socket.create_connection(("127.0.0.1", s.port))
        k.sendall(b"POST /v1/comp")
        slow.append(k)
    for k in slow:
        k.sendall(b"l")
    t0 = time.time()
    check(s.get("/health").status == 200 and time.time() - t0 < 0.5, f"/health beside 1,000 slow senders: {time.time() - t0:.3f} s")
    for k in socks + slow:
        k.close()
    t = s.idle(5)
    check(t is not None, f"all streams closed: idle after {t} s")
    stop.set()
    th.join()
    check(worst[0] < 1.0, f"slowest /health of the whole run: {worst[0] * 1000:.0f} ms")
    r = s.chat("Please add 3 and 2.").json["choices"][0]["message"]["content"]
    equal(r, "3 + 2 = 5.", "and it still answers")
done()
