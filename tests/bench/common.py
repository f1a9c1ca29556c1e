"""What the tests of the load generator share."""
import json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TINY = os.path.join(ROOT, "models", "tiny-glm-5.3-flash")
BIN = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "glimmer")
# Sanitizers and a busy machine make everything late; figures of time are held to this many seconds.
SLACK = float(os.environ.get("GM_BENCH_SLACK", "0.08"))
failures = []


def check(ok, what, detail=""):
    print(("ok    " if ok else "FAIL  ") + what + ("" if ok or detail == "" else f"\n      {str(detail)[:3000]}"), flush=True)
    if not ok:
        failures.append(what)
    return ok


def equal(got, want, what):
    return check(got == want, what, f"got  {got!r}\n      want {want!r}")


def near(got, want, what, early=0.004):
    """A time in seconds: late by scheduling noise only, early by no more than a clock's grain. (A gap may be short by
    what its beginning was late: early=SLACK.)"""
    return check(want - early <= got <= want + SLACK, what, f"got {got:.4f} s, want {want:.4f} s")


def done():
    print(f"{len(failures)} failed" if failures else "all passed")
    sys.exit(1 if failures else 0)


class Run:
    def __init__(self, *args, timeout=300, env=None):
        p = subprocess.run([BIN, "bench", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                           env=dict(os.environ, **(env or {})))
        self.rc, self.out, self.err = p.returncode, p.stdout, p.stderr


def serve(port, *args, keep=None, **k):
    """glimmer bench serve against a port: the run, and its JSON with --save-detailed."""
    with tempfile.TemporaryDirectory() as d:
        r = Run("serve", "--base-url", f"http://127.0.0.1:{port}", "--model", "stub", "--tokenizer", TINY, "--temperature", 0,
                "--save-result", "--save-detailed", "--result-dir", d, "--result-filename", "r.json", *args, **k)
        try:
            with open(os.path.join(d, "r.json")) as f:
                r.text = f.read()
                r.json = json.loads(r.text)
        except OSError:
            r.text, r.json = "", None
        return r
