#!/usr/bin/env python3
"""The golden checkpoints over HTTP: prompt log-probabilities of the whole vocabulary and greedy tokens, by the reference
client tools/golden_check.py."""
from common import *

base = os.path.join(ROOT, "tests", "fixtures", "golden")
names = sorted(os.listdir(base)) if os.path.isdir(base) else []
if not names:
    print("skipped: no golden checkpoints here")
    sys.exit(77)
for n in names:
    d = os.path.join(base, n)
    with Server("--skip-tokenizer-init", "--max-logprobs", "-1", "--dtype", "float32", "--kv-cache-dtype", "float32",
                "--served-model-name", n, model=d) as s:
        r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "golden_check.py"), d, "--url", f"http://127.0.0.1:{s.port}",
                            "--parallel", "3"], capture_output=True, text=True)
        check(r.returncode == 0, (r.stdout.strip().splitlines() or ["no output"])[-1], r.stdout + r.stderr)
        c = s.complete([1, 2, 3], max_tokens=2, prompt_logprobs=2).json["choices"][0]
        equal(c["text"], "", f"{n}: no tokenizer, empty text")
        pl = c["prompt_logprobs"]
        check(len(pl) == 3 and pl[0] is None and 2 <= len(pl[1]) <= 3 and all(set(v) == {"logprob", "rank", "decoded_token"} and v["decoded_token"] is None
              for row in pl[1:] for v in row.values()), f"{n}: prompt_logprobs form", pl)
        check("2" in pl[1] and "3" in pl[2], f"{n}: the prompt's own tokens are in", pl)
        e = s.complete("text")
        check(e.status == 400, f"{n}: a text prompt is a 400", e.body)
done()
