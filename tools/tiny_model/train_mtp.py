"""Trains the multi-token-prediction block of an exported model, whose own weights stay as they are.

usage: train_mtp.py --model DIR --corpus DIR --tok DIR --out DIR --seconds S [--init MASTER] [--start P] ...
Progress and schedules follow the clock as in train.py; nothing is compiled. OUT receives mtp.safetensors, the block's tensors in the released
form (merge_mtp.py puts them into a checkpoint), and mtp_master.pt to continue from.
"""
import argparse, json, os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
T0 = time.time()
ap = argparse.ArgumentParser()
ap.add_argument("--model", required=True)
ap.add_argument("--corpus", required=True)
ap.add_argument("--tok", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--seconds", type=float, default=60, help="whole run, from the start of the process to the last step")
ap.add_argument("--steps", type=int, default=0, help="stop after this many steps at the latest")
ap.add_argument("--init", help="mtp_master.pt to continue from")
ap.add_argument("--tokens", type=int, default=65536)
ap.add_argument("--lr", type=float, default=3e-3)
ap.add_argument("--wd", type=float, default=0.1)
ap.add_argument("--workers", type=int, default=14)
ap.add_argument("--seed", type=int, default=11)
ap.add_argument("--start", type=float, default=0.0, help="progress to start at (continuing a run)")
ap.add_argument("--flat", type=float, default=0.3, help="progress at which the learning rate begins to fall")
ap.add_argument("--warm", type=int, default=100)
ap.add_argument("--drafts", type=float, nargs="+", default=[1.0, 0.8, 0.6], help="weight of each draft in the loss")
a = ap.parse_args()

import feed
F_ = feed.Feed(a.corpus, a.tok + "/tokenizer.json", a.workers, a.seed)

import torch
import model, mtp
from feed import BUCKETS
from optim import Optim, positions
torch.set_float32_matmul_precision("high")
if torch.cuda.is_available():
    torch.backends.cuda.enable_cudnn_sdp(False)
torch.manual_seed(a.seed)
N, K = a.tokens, len(a.drafts)
DEV = "cuda" if torch.cuda.is_available() else "cpu"
sync = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
say = lambda *x: print("[%6.1f]" % (time.time() - T0), *x, flush=True)

SHARE = [.34, .33, .20, .08, .03, .02, .00]     # of the buckets
WHOLE = 2048                                    # longest rows that train all drafts; longer ones train draft 1
SPARSE, QAT = 0.4, 0.5                          # progress from which the block selects, and from which its weights are rounded


def main():
    config = json.load(open(a.model + "/config.json"))["text_config"]
    trunk = mtp.Trunk(a.model, DEV)
    init = torch.load(a.init, map_location=DEV) if a.init else None
    net = mtp.Block(trunk, config, *(init or ()), seed=a.seed)
    opt = Optim(net, a.lr, a.wd)
    say("parameters", sum(p.numel() for p in net.master.values()), "muon groups", {k: len(v) for k, v in opt.groups.items()})
    F_.open(DEV)
    for i in range(len(BUCKETS)):
        F_.share[i] = SHARE[i] if BUCKETS[i] <= N else 0
    rng = torch.Generator().manual_seed(a.seed)
    step, t_start, p = 0, None, a.start
    log, seen, t_log = {}, {}, time.time()
    while True:
        if step % 20 == 0:
            sync()
            if step and not torch.isfinite(norm):
                sys.exit("not finite at step %d: states %d loss %s" % (step, torch.isfinite(h).all(), total))
            now = time.time()
            if step == 40:
                t_start = now; say("clock starts")
            p = a.start if t_start is None else a.start + (1 - a.start) * (now - t_start) / max(1.0, T0 + a.seconds - t_start)
            if p >= 1 or now - T0 > a.seconds:
                break
        if a.steps and step >= a.steps:
            break
        if p >= QAT and not net.qat:
            net.qat = True; net.refresh(); say("fp8 weights from here, step", step)
        b = int(torch.multinomial(torch.tensor([s if T <= N else 0 for s, T in zip(SHARE, BUCKETS)]), 1, generator=rng))
        T = BUCKETS[b] if step > 3 else 256
        B = N // T
        t_wait = time.time()
        while not F_.ready(T, B):
            time.sleep(.02)
            if time.time() - t_wait > 60:
                sys.exit("no data")
            if T > 256 and F_.ready(256, N // 256):
                T, B = 256, N // 256
        ids, nxt, w, valid = (x.view(-1) for x in F_.batch(T, B))
        with torch.no_grad():
            h = trunk.hidden(ids, B, T)
        qi = positions(w, B, T, 64) if T >= 512 and step > 100 else None
        sparse = p >= SPARSE and float(torch.rand(1, generator=rng)) < 0.9
        outs, kl = net.chains(h, nxt, B, T, K if T <= WHOLE else 1, sparse, qi, valid)
        total, row = 0.0, []
        for k, o in enumerate(outs):
            loss, hit, wk = net.distil(o, h, w, B, T, k)
            total = total + a.drafts[k] * loss / wk.sum()
            with torch.no_grad():
                gen = (wk > .9).float()
                good = hit.float() if k == 0 else good * hit.float()
                row += [loss.detach() / wk.sum(), (good * gen).sum() / gen.sum().clamp_min(1)]
        (total + kl).backward()
        f = (1.0 if p < a.flat else max(0.02, 1 - (p - a.flat) / (1 - a.flat))) * min(1.0, (step + 1) / a.warm)
        norm = opt.step(f)
        with torch.no_grad():
            for i, c in net.load.items():
                net.bias[i] += (2e-3 * f) * torch.sign(c.mean() - c)
        net.refresh()
        row += [norm.new_zeros(())] * (2 * (K - len(outs)))
        row += [kl.detach() if qi is not None else norm.new_zeros(()), net.kept.pop() if net.kept else norm.new_zeros(()), norm]
        key = (T, bool(sparse and T > 256))
        log[key] = log.get(key, 0) + torch.stack([x.float() for x in row])
        seen[key] = seen.get(key, 0) + 1
        step += 1
        if step % 250 == 0 or step in (20, 60, 120):
            sync()
            c = net.load[net.i]
            say("step %d p %.3f lr %.2e %.0f tok/s bal %.2f; loss and share of chains right so far, kl, kept, norm" % (
                step, p, a.lr * f, sum(seen.values()) * N / (time.time() - t_log), c.max() / c.mean()))
            for k in sorted(log):
                print("   %5d%s %s" % (k[0], "s" if k[1] else " ", " ".join("%.3f" % x for x in (log[k] / seen[k]).tolist())), flush=True)
            log, seen, t_log = {}, {}, time.time()
    say("done", step, "steps;", (torch.cuda.max_memory_allocated() >> 20) if DEV == "cuda" else 0, "MiB peak;", F_.stats())
    F_.close()
    os.makedirs(a.out, exist_ok=True)
    torch.save(({n: p.detach().cpu() for n, p in net.master.items()}, net.bias[net.i].cpu()), a.out + "/mtp_master.pt")
    mtp.save(a.out + "/mtp.safetensors", net)
    say("saved")


if __name__ == "__main__":
    main()
