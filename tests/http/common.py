"""What the HTTP tests share: a server process, requests over plain sockets, and checks that print what they look at.
Standard library only."""
import http.client, json, os, re, signal, socket, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TINY = os.path.join(ROOT, "models", "tiny-glm-5.3-flash")
BIN = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "glimmer")
failures = []


def check(ok, what, detail=""):
    print(("ok    " if ok else "FAIL  ") + what + ("" if ok or detail == "" else f"\n      {str(detail)[:1500]}"), flush=True)
    if not ok:
        failures.append(what)
    return ok


def equal(got, want, what):
    return check(got == want, what, f"got  {got!r}\n      want {want!r}")


def done():
    print(f"{len(failures)} failed" if failures else "all passed")
    sys.exit(1 if failures else 0)


def need_model():
    if not os.path.exists(os.path.join(TINY, "model.safetensors")):
        print("skipped: models/tiny-glm-5.3-flash is not here")
        sys.exit(77)


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    def __init__(self, *flags, model=TINY, wait=True, env=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        e = dict(os.environ, **(env or {}))
        self.t0 = time.time()
        self.p = subprocess.Popen([BIN, "serve", model, "--host", "127.0.0.1", "--port", "0", *map(str, flags)],
                                  stderr=self.log, stdout=subprocess.DEVNULL, env=e)
        self.port = None
        if wait:
            self.wait()

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def wait(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if "Application startup complete." in self.text():
                self.ready_s = time.time() - self.t0
                self.port = int(re.search(r"Starting vLLM server on https?://127.0.0.1:(\d+)", self.text()).group(1))
                return
            if self.p.poll() is not None:
                break
            time.sleep(0.01)
        raise SystemExit("the server did not start:\n" + self.text())

    def request(self, method, path, body=None, headers=None, timeout=120):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        h = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if body is not None:
            h.setdefault("Content-Type", "application/json")
        c.request(method, path, body, h)
        r = c.getresponse()
        out = Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        c.close()
        return out

    def get(self, path, **k):
        return self.request("GET", path, **k)

    def post(self, path, body, **k):
        return self.request("POST", path, body, **k)

    def chat(self, content, **k):
        m = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": m, "temperature": 0, **k})

    def complete(self, prompt, **k):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **k})

    def stream(self, path, body, headers=None):
        """All 'data:' payloads of a stream, '[DONE]' included."""
        r = self.post(path, {**body, "stream": True}, headers=headers)
        assert r.status == 200, r.body
        events = r.body.decode().split("\n\n")
        assert events[-1] == "", "the stream does not end in a blank line"
        return r, [e[6:] for e in events[:-1] if e.startswith("data: ")]

    def chunks(self, path, body):
        _, d = self.stream(path, body)
        assert d[-1] == "[DONE]", d[-1]
        return [json.loads(x) for x in d[:-1]]

    def open(self, path, body, method="POST"):
        """A raw socket with the request sent and nothing read."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        b = json.dumps(body).encode()
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(b)}\r\n\r\n".encode() + b)
        return s

    def raw(self, data, timeout=30):
        """Send bytes, read until the other side closes or falls silent."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        out = b""
        try:
            s.sendall(data)
            s.settimeout(3)
            while True:
                b = s.recv(65536)
                if not b:
                    break
                out += b
        except (socket.timeout, ConnectionError, BrokenPipeError):
            pass
        s.close()
        return out

    def metrics(self):
        out = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and line[0] != "#":
                k, v = line.rsplit(" ", 1)
                out[k] = float(v)
        return out

    def metric(self, name, **labels):
        for k, v in self.metrics().items():
            if (k == name or k.startswith(name + "{")) and all(f'{a}="{b}"' in k for a, b in labels.items()):
                return v
        return None

    def idle(self, seconds=2.0):
        """Seconds until nothing runs or waits; None: still busy."""
        t0 = time.time()
        while time.time() - t0 < seconds:
            m = self.metrics()
            busy = [v for k, v in m.items()
                    if k.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{",
                                     "glimmer:state_slots_usage_perc{"))]
            if not any(busy):
                return time.time() - t0
            time.sleep(0.02)
        return None

    def stop(self, sig=signal.SIGTERM, seconds=20):
        if self.p.poll() is None:
            self.p.send_signal(sig)
        try:
            rc = self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            self.p.kill()
            rc = "killed by the test"
        return rc

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        rc = self.stop()
        check(rc == 0, f"the server leaves with status 0 on SIGTERM", f"{rc}\n{self.text()[-2000:]}")
        os.unlink(self.log.name)


def run(*args, stdin=None, timeout=120, env=None):
    return subprocess.run([BIN, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout,
                          env=dict(os.environ, **(env or {})))


def joined(chunks, key, index=0):
    return "".join(c["choices"][0]["delta"].get(key) or "" for c in chunks
                   if c["choices"] and c["choices"][0]["index"] == index)


def calls_of(chunks, index=0):
    """Tool calls put together as a client does."""
    out = {}
    for c in chunks:
        for ch in c["choices"]:
            if ch["index"] != index:
                continue
            for t in ch["delta"].get("tool_calls") or []:
                k = out.setdefault(t["index"], {"id": None, "name": "", "arguments": ""})
                if t.get("id"):
                    k["id"] = t["id"]
                k["name"] += t["function"].get("name") or ""
                k["arguments"] += t["function"].get("arguments") or ""
    return [out[i] for i in sorted(out)]


def prompts():
    with open(os.path.join(TINY, "prompts.jsonl")) as f:
        out = [json.loads(x) for x in f]
    for p in out: # the file has bare function objects
        p["tools"] = p["tools"] and [{"type": "function", "function": t} for t in p["tools"]]
    return out
