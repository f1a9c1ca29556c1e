"""A scripted OpenAI-compatible server: every answer's bytes and delays are decided beforehand, so that each figure of the
client can be computed by hand. Standard library only.

  Stub(script)      script(i, body) -> list of steps for request number i (the digits that end x-request-id); a step is
                    a number (seconds to wait), bytes or str (written as they are), a dict (one SSE message), "DONE",
                    ("status", n, text) instead of a stream, or "CLOSE" (drop the connection here)
"""
import asyncio, json, re, threading, time


def text(t, finish=None):
    return {"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": t, "logprobs": None, "finish_reason": finish}]}


def delta(finish=None, **d):
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d, "finish_reason": finish}]}


def usage(prompt, completion, **k):
    return {"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion,
                                                     "total_tokens": prompt + completion, **k}}


class Stub:
    def __init__(self, script, get=None, post=None, slice_bytes=0, port=0):
        self.script, self.slice, self.port = script, slice_bytes, port
        self.pages = {"/v1/models": json.dumps({"data": [{"id": "stub", "root": "stub"}]}), **(get or {})}
        self.posts = post or {}
        self.seen = []     # (path, headers, body) of every POST
        self.starts = {}   # request number -> time of arrival
        self.open = self.open_max = 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready):
        asyncio.set_event_loop(self.loop)

        async def start():
            self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 26, backlog=4096)
            self.port = self.server.sockets[0].getsockname()[1]
            ready.set()
        self.loop.run_until_complete(start())
        self.loop.run_forever()

    async def _serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
                method, path = head.split(" ", 2)[:2]
                headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in head.split("\r\n")[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answer(method, path, headers, body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method, path, headers, body, w):
        def whole(status, content):
            content = content.encode() if isinstance(content, str) else content
            w.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        if method == "GET":
            page = self.pages.get(path)
            page = page() if callable(page) else page
            whole(200 if page is not None else 404, page or "")
            return True
        data = json.loads(body) if body else {}
        self.seen.append((path, headers, data))
        if path in self.posts:
            whole(*self.posts[path](data))
            return True
        if not path.endswith("/completions"):
            whole(404, "")
            return True
        n = int(re.search(r"(\d+)$", headers.get("x-request-id", "0")).group(1))
        self.starts[n] = time.time()
        self.open += 1
        self.open_max = max(self.open, self.open_max)
        try:
            return await self._stream(self.script(n, data), whole, w)
        finally:
            self.open -= 1

    async def _stream(self, steps, whole, w):
        if steps and isinstance(steps[0], tuple):
            whole(steps[0][1], steps[0][2])
            return True
        begun = False

        async def write(b):
            b = b.encode() if isinstance(b, str) else b
            pieces = [b[i:i + self.slice] for i in range(0, len(b), self.slice)] if self.slice else [b]
            for p in pieces:
                w.write(f"{len(p):x}\r\n".encode() + p + b"\r\n")
                await w.drain()
                if self.slice:
                    await asyncio.sleep(0)
        due = time.monotonic()
        for s in steps:
            if isinstance(s, (int, float)):
                due += s
                await asyncio.sleep(max(0, due - time.monotonic()))
                continue
            if not begun:
                w.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                begun = True
            if s == "CLOSE":
                w.close()
                return False
            await write("data: [DONE]\n\n" if s == "DONE" else f"data: {json.dumps(s)}\n\n" if isinstance(s, dict) else s)
        w.write(b"0\r\n\r\n")
        return True
