"""A `glimmer serve` of the shipped model for the tests of the load generator."""
import os, re, signal, subprocess, sys, tempfile, time
from common import BIN, TINY


class Server:
    def __init__(self, *flags, env=None):
        if not os.path.exists(os.path.join(TINY, "model.safetensors")):
            print("skipped: models/tiny-glm-5.3-flash is not here")
            sys.exit(77)
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        self.p = subprocess.Popen([os.environ.get("GM_SERVER", BIN), "serve", TINY, "--host", "127.0.0.1", "--port", "0", *map(str, flags)], stderr=self.log,
                                  stdout=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))
        end = time.time() + 120
        while time.time() < end:
            with open(self.log.name) as f:
                t = f.read()
            m = re.search(r"Starting vLLM server on (https?)://127.0.0.1:(\d+)", t)
            if m and "Application startup complete." in t:
                self.port = int(m.group(2))
                self.url = f"{m.group(1)}://127.0.0.1:{self.port}"
                return
            if self.p.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit("the server did not start:\n" + t)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
        os.unlink(self.log.name)
