"""glimmer bench grid: two servers, two shapes; stopped and resumed; a failing server; the reports; the page in Chromium.
  grid_test.py GLIMMER        all but Chromium
  grid_test.py GLIMMER page   the page only: skipped (77) where there is no Chromium
"""
import csv, json, os, re, shutil, signal, socket, struct, subprocess, sys, tempfile, time, zlib
from common import BIN, TINY, Run, check, done, equal

if not os.path.exists(os.path.join(TINY, "model.safetensors")):
    print("skipped: models/tiny-glm-5.3-flash is not here")
    sys.exit(77)


SERVER = os.environ.get("GM_SERVER", BIN)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def write_grid(path, out, port, prompts=2, second="--kv-cache-dtype fp8"):
    with open(path, "w") as f:
        f.write(f'''title = "Two caches <&> one model"
out = "{out}"
bench = ["--model", "{TINY}", "--temperature", 0]
prompts_per_concurrency = {prompts}
concurrency = [1, 2, 4]

[[server]]
name = "plain"
command = "{SERVER} serve {TINY} --port {port} --num-gpu-blocks-override 12"
url = "http://127.0.0.1:{port}"

[[server]]
name = "fp8 cache"
command = "{SERVER} serve {TINY} --port {port} --num-gpu-blocks-override 14 {second}"
url = "http://127.0.0.1:{port}"
env = {{ GM_TEST = "1" }}

[[shape]]
name = "240/16"
input = 240
output = 16

[[shape]]           # named by its lengths
input = 32
output = 8
range_ratio = 0.5
concurrency = [2, 8]
servers = ["plain", "fp8 cache"]
''')


def points(out):
    d = os.path.join(out, "points")
    return sorted(x for x in os.listdir(d) if x.endswith(".json")) if os.path.isdir(d) else []


def stop_and_resume(d):
    grid, out, port = d + "/g.toml", d + "/out/deep", free_port()
    write_grid(grid, out, port)
    r = Run("grid", grid, "--dry-run")
    check(r.rc == 0 and r.out.count("missing") == 10 and "--random-range-ratio 0.5" in r.out and not os.path.exists(out), "--dry-run shows ten points and does nothing", r.out + r.err)
    p = subprocess.Popen([BIN, "bench", "grid", grid], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.time() + 120
    while len(points(out)) < 2 and time.time() < end and p.poll() is None:
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    text = p.communicate(timeout=60)[0]
    first = points(out)
    check(p.returncode == 130 and 2 <= len(first) < 10, "stopped in the middle: status 130, some records", (p.returncode, first, text))
    check(os.path.exists(out + "/report.html"), "a stopped grid leaves a report of what there is")
    with socket.socket() as s:
        check(s.connect_ex(("127.0.0.1", port)) != 0, "its server is gone")
    check(not [x for x in os.listdir(out + "/points") if x.endswith(".part")], "no half-written record")
    times = {x: os.stat(os.path.join(out, "points", x)).st_mtime_ns for x in first}
    r = Run("grid", grid)
    equal((r.rc, len(points(out))), (0, 10), "the same command goes on to the end")
    check(all(os.stat(os.path.join(out, "points", x)).st_mtime_ns == t for x, t in times.items()), "what was measured is not measured again")
    r = Run("grid", grid)
    check(r.rc == 0 and "server" not in r.out, "nothing left: no server is started", r.out)
    for x in points(out):
        with open(os.path.join(out, "points", x)) as f:
            j = json.load(f)
        check(j["completed"] == j["num_prompts"] == 2 * j["max_concurrency"] and int(j["kv_cache_tokens"]) > 0, f"record {x}", j)
    # a changed server is another point
    write_grid(grid, out, port, second="--kv-cache-dtype fp8 --threads 1")
    r = Run("grid", grid, "--dry-run")
    equal((r.out.count("measured"), r.out.count("missing")), (5, 5), "a changed command line makes its points missing")
    write_grid(grid, out, port)
    return out


def reports(out):
    with open(out + "/report.csv") as f:
        rows = list(csv.DictReader(f))
    equal((len(rows), {x["server"] for x in rows}, {x["shape"] for x in rows}), (10, {"plain", "fp8 cache"}, {"240/16", "32/8"}), "CSV: a row a point")
    check(all(float(x["output_throughput"]) > 0 and float(x["p99_ttft_ms"]) >= float(x["median_ttft_ms"]) > 0 for x in rows), "CSV: figures", rows[0])
    kv = {x["server"]: int(x["kv_cache_tokens"]) for x in rows}
    equal(kv, {"plain": 12 * 64, "fp8 cache": 14 * 64}, "CSV: the cache size is that of the server's log")
    with open(out + "/report.md") as f:
        md = f.read()
    check(md.count("\n| ") == 12 and "## 240/16" in md and "holds 3 sessions" in md, "Markdown", md)
    with open(out + "/report.html") as f:
        html = f.read()
    equal(html.count("<figure>"), 8, "page: four plots a shape")
    check("Two caches &lt;&amp;&gt; one model" in html and "<script" not in html and not re.search(r"(src|href)=\"(?!#)", html), "page: escaped, no script, nothing from elsewhere")
    check(html.count('class="cap"') >= 2, "page: capacity lines", html.count('class="cap"'))
    check("prefers-color-scheme:dark" in html and "width=device-width" in html, "page: dark mode, phones")


def failing(d):
    port = free_port()
    for command, part in (("echo no such thing; exit 3", "ended with status 3"), ("sleep 60", "not ready")):
        with open(d + "/bad.json", "w") as f:
            json.dump({"out": d + "/bad", "server": [{"name": "x", "command": command, "url": f"http://127.0.0.1:{port}", "ready_timeout_s": 1}],
                       "shape": [{"input": 5, "output": 2}], "concurrency": [1]}, f)
        r = Run("grid", d + "/bad.json")
        check(r.rc == 1 and part in r.err, f"a server that does not come up: {part}", (r.rc, r.err))
    for text, part in (("{", "bad.json"), ('{"server": []}', "at least one"), ('{"servers": []}', "unknown key 'servers'"),
                       ('{"server":[{"name":"a"}],"shape":[{"input":5,"output":1}]}', "concurrency"),
                       ('{"server":[{"name":"a"},{"name":"a"}],"shape":[{"input":5,"output":1}],"concurrency":[1]}', "different names"),
                       ('{"server":[{"name":"a"}],"shape":[{"input":0,"output":1}],"concurrency":[1]}', "at least 1")):
        with open(d + "/bad.json", "w") as f:
            f.write(text)
        r = Run("grid", d + "/bad.json")
        check(r.rc != 0 and part in r.err, f"a bad file: {part}", (r.rc, r.err))


def chromium():
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")) if p), None)


def browse(exe, d, *args):
    return subprocess.run([exe, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--allow-file-access-from-files",
                           f"--user-data-dir={d}/profile", *args], capture_output=True, text=True, timeout=180)


def pixel(path, x, y):
    """RGB of one pixel of a PNG with 8 bits a channel."""
    with open(path, "rb") as f:
        b = f.read()
    at, data = 8, b""
    while at < len(b):
        n, kind = struct.unpack(">I4s", b[at:at + 8])
        if kind == b"IHDR":
            w, h, depth, color = struct.unpack(">IIBB", b[at + 8:at + 18])
        if kind == b"IDAT":
            data += b[at + 8:at + 8 + n]
        at += 12 + n
    k = {2: 3, 6: 4}[color]
    raw, prev, i = zlib.decompress(data), bytearray(w * k), 0
    for row in range(y + 1):
        f, line = raw[i], bytearray(raw[i + 1:i + 1 + w * k])
        i += 1 + w * k
        for c in range(w * k):
            a, u, ul = (line[c - k] if c >= k else 0), prev[c], (prev[c - k] if c >= k else 0)
            p = a + u - ul
            paeth = a if abs(p - a) <= abs(p - u) and abs(p - a) <= abs(p - ul) else u if abs(p - u) <= abs(p - ul) else ul
            line[c] = (line[c] + (0, a, u, (a + u) // 2, paeth)[f]) & 255
        prev = line
    return tuple(prev[x * k:x * k + 3])


def page(d):
    exe = chromium()
    if not exe:
        print("skipped: no Chromium here (apt install chromium)")
        sys.exit(77)
    grid, out = d + "/g.toml", d + "/out"
    write_grid(grid, out, free_port())
    os.makedirs(out + "/points")
    # records made by hand: the page needs no server
    keys = re.findall(r"(missing|measured) +(.*?): .*--result-filename (\S+) --metadata grid_key=(\w+)", Run("grid", grid, "--dry-run").out)
    equal(len(keys), 10, "ten points")
    for n, (_, _, name, key) in enumerate(keys):
        c = int(re.search(r"c(\d+)\.json", name).group(1))
        j = {"grid_key": key, "kv_cache_tokens": "12345" if "fp8" in name else "700", "completed": 2 * c, "failed": 0, "duration": 10.0 + n}
        for i, k in enumerate(("output_throughput", "total_token_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")):
            j[k] = (100.0 + 17 * n) * c ** (0.7 if i < 2 else 0.5) * (1 + i % 2)
        with open(f"{out}/points/{name}", "w") as f:
            json.dump(j, f)
    r = Run("grid", grid, "--report-only")
    equal(r.rc, 0, "--report-only")
    html = out + "/report.html"
    # the widths of a frame, of what is in it, and of the text in the plots, as the browser lays them out
    with open(d + "/frame.html", "w") as f:
        f.write(f"""<iframe id=f style="border:0;height:3000px"></iframe><pre id=o></pre><script>
const f=document.getElementById('f'),out=[];let widths=[390,1280];
function next(){{ if(!widths.length){{document.getElementById('o').textContent='RESULT '+JSON.stringify(out)+' END';return}}
 const w=widths.shift(); f.style.width=w+'px'; f.onload=()=>{{const d=f.contentDocument,r=d.documentElement;
  const t=[...d.querySelectorAll('svg text')].map(x=>x.getBoundingClientRect().height);
  const fig=[...d.querySelectorAll('figure')].map(x=>x.getBoundingClientRect());
  out.push({{w:w,scroll:r.scrollWidth,text:Math.min(...t),right:Math.max(...fig.map(x=>x.right)),columns:new Set(fig.map(x=>Math.round(x.left))).size,
   font:parseFloat(getComputedStyle(d.body).fontSize)}}); next()}}; f.src='file://{html}?'+w }}
next()</script>""")
    dom = browse(exe, d, "--virtual-time-budget=8000", "--dump-dom", "file://" + d + "/frame.html").stdout
    m = re.search(r"RESULT (\[.*?\]) END", dom)
    if not check(m, "the browser lays the page out", dom[-800:]):
        return
    phone, desk = json.loads(m.group(1))
    check(phone["scroll"] <= 390 and phone["right"] <= 390 and phone["columns"] == 1, "390 px: no sideways scrolling, one column", phone)
    check(phone["text"] >= 10 and phone["font"] >= 16, "390 px: text of a readable size", phone)
    check(desk["scroll"] <= 1280 and desk["columns"] == 2, "1280 px: two columns", desk)
    for mode, scheme in (("light", 1), ("dark", 0)):
        for w in (390, 1280):
            png = f"{d}/{mode}-{w}.png"
            browse(exe, d, f"--window-size={w},1400", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={png}", "file://" + html)
            p = pixel(png, 3, 3) if os.path.exists(png) else None
            check(p and (min(p) > 240 if mode == "light" else max(p) < 40), f"{mode}, {w} px: the background is {mode}", p)
            if os.environ.get("GM_KEEP_SHOTS"):
                shutil.copy(png, os.environ["GM_KEEP_SHOTS"])


with tempfile.TemporaryDirectory() as d:
    if len(sys.argv) > 2 and sys.argv[2] == "page":
        page(d)
    else:
        failing(d)
        reports(stop_and_resume(d))
done()
