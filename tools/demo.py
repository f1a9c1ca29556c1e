#!/usr/bin/env python3
"""Serve the shipped model and talk to it: a streamed chat with its thoughts apart from the answer, a tool call, and a
question about a fact that stands thousands of tokens earlier.

usage: demo.py GLIMMER MODEL_DIR

Exit status 0 only if all three answers are right. Standard library only."""
import http.client, json, os, re, signal, subprocess, sys, tempfile, time

COLOR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
DIM, BOLD, GREEN, RED, OFF = ("\033[2m", "\033[1m", "\033[32m", "\033[31m", "\033[0m") if COLOR else ("",) * 5
wrong = []


def say(text):
    print(f"\n{BOLD}{text}{OFF}", flush=True)


def start(glimmer, model):
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")
    args = [glimmer, "serve", model, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "tiny"]
    say("Starting the server: " + " ".join(args[:3]) + " --port 0")
    t0 = time.time()
    p = subprocess.Popen(args, stderr=log)
    while p.poll() is None:
        with open(log.name) as f:
            text = f.read()
        if "Application startup complete." in text:
            print(f"ready after {time.time() - t0:.2f} s; " + re.search(r"GPU KV cache size: .*", text).group())
            return p, log, int(re.search(r"Starting vLLM server on http://[\d.]+:(\d+)", text).group(1))
        time.sleep(0.01)
    with open(log.name) as f:
        sys.exit("the server did not start:\n" + f.read())


def chat(port, body):
    """Streams the answer to the terminal; returns (reasoning, content, calls)."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"model": "tiny", "temperature": 0, "max_tokens": 400, "stream": True, "stream_options": {"include_usage": True}, **body}
    t0 = time.time()
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"status {r.status}: {r.read().decode()}")
    reasoning, content, calls, first, usage, kind = "", "", {}, None, None, None
    for line in r:
        line = line.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        d = json.loads(line[6:])
        if "error" in d:
            sys.exit("the server reports: " + d["error"]["message"])
        usage = d.get("usage") or usage
        for ch in d["choices"]:
            x = ch["delta"]
            for k, style in (("reasoning", DIM), ("content", "")):
                if not x.get(k):
                    continue
                first = first or time.time()
                if kind != k:
                    sys.stdout.write(("\n" if kind else "") + OFF + style + ("  thinks:  " if k == "reasoning" else "  answers: "))
                    kind = k
                sys.stdout.write(x[k])
                sys.stdout.flush()
                if k == "reasoning":
                    reasoning += x[k]
                else:
                    content += x[k]
            for t in x.get("tool_calls") or []:
                k = calls.setdefault(t["index"], {"name": "", "arguments": ""})
                k["name"] += t["function"].get("name") or ""
                k["arguments"] += t["function"].get("arguments") or ""
    end = time.time()
    for k in calls.values():
        sys.stdout.write(f"{OFF}\n  calls:   {k['name']}({k['arguments']})")
    n = usage["completion_tokens"]
    rate = (n - 1) / (end - first) if first and n > 1 and end > first else 0
    print(f"{OFF}\n{DIM}  [{usage['prompt_tokens']} prompt tokens, first token after {(first or end) - t0:.3f} s, {n} tokens at {rate:.0f} tokens/s]{OFF}")
    c.close()
    return reasoning, content, list(calls.values())


def expect(ok, what):
    print(f"  {GREEN}right{OFF}: {what}" if ok else f"  {RED}wrong{OFF}: expected {what}", flush=True)
    if not ok:
        wrong.append(what)


def main():
    glimmer, model = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open(os.path.join(model, "prompts.jsonl")) as f:
        prompts = [json.loads(x) for x in f]
    p, log, port = start(glimmer, model)
    try:
        say("1. A chat, streamed. User: Please add 3 and 2.")
        r, c, _ = chat(port, {"messages": [{"role": "user", "content": "Please add 3 and 2."}]})
        expect(c.strip() == "3 + 2 = 5." and "5" in r, "3 + 2 = 5, the thoughts apart from the answer")

        two = prompts[7]
        question = two["messages"][-1]["content"]
        names = ", ".join(t["name"] for t in two["tools"])
        say(f"2. Tools ({names}). User: {question}")
        _, _, calls = chat(port, {"messages": two["messages"], "tools": [{"type": "function", "function": t} for t in two["tools"]]})
        got = [(k["name"], json.loads(k["arguments"])) for k in calls]
        expect(got == [("get_time", {"city": "Kyoto"}), ("get_time", {"city": "Seattle"})], "get_time for Kyoto and for Seattle")

        # The shipped prompt states its fact at the end of the text; here it is moved to the beginning.
        fact = json.loads(json.dumps(prompts[5]["messages"]))
        text, sentence = fact[0]["content"], "Bob works as a driver. "
        head, rest = text.replace(sentence, "").split("\n\n", 1)
        at = rest.index(". ", len(rest) // 20) + 2
        fact[0]["content"] = head + "\n\n" + rest[:at] + sentence + rest[at:]
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("POST", "/tokenize", json.dumps({"prompt": rest[at:]}), {"Content-Type": "application/json"})
        later = json.loads(c.getresponse().read())["count"]
        say(f"3. A text in which '{sentence.strip()}' stands {later} tokens before the question. User: {fact[-1]['content']}")
        _, c, _ = chat(port, {"messages": fact})
        expect(later > 2000 and "driver" in c, "Bob works as a driver.")
    finally:
        p.send_signal(signal.SIGTERM)
        status = p.wait(20)
    say(f"The server left with status {status}.")
    if status:
        wrong.append("status 0 of the server")
    print(f"{RED}{len(wrong)} wrong{OFF}" if wrong else f"{GREEN}All answers are right.{OFF}")
    sys.exit(1 if wrong else 0)


main()
