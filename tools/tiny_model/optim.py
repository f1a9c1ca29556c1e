"""The optimiser of the training runs and the indexer's query positions."""
import math
import torch

MUON = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "experts.", "eh_proj")


def orthogonal(x):
    """Newton-Schulz on a stack [n, r, c], r <= c."""
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x


class Optim:
    """Muon (updates scaled to AdamW's size) for the hidden matrices, AdamW for the rest."""

    def __init__(self, net, lr, wd):
        self.net, self.lr, self.wd = net, lr, wd
        self.groups = {}
        rest, index = [], []
        for n in net.names:
            p = net.master[n]
            if "indexer" in n:
                index.append(n)
            elif any(k in n for k in MUON) and p.dim() >= 2 and "norm" not in n:
                r, c = p.shape[-2:]
                if n.endswith("gate_up_proj"):
                    r //= 2
                self.groups.setdefault((min(r, c), max(r, c)), []).append((n, r > c, r, c))
            else:
                rest.append(n)
        self.mom = {}
        self.rest = rest + index
        decay = lambda n: net.master[n].dim() >= 2 and "conv1d" not in n
        groups = [
            {"params": [net.master[n] for n in rest if decay(n) and "_hc." not in n], "weight_decay": wd * 0.3, "mult": 1.0},
            {"params": [net.master[n] for n in rest if "_hc." in n], "weight_decay": 0.0, "mult": 0.5},
            {"params": [net.master[n] for n in rest if not decay(n) and "_hc." not in n], "weight_decay": 0.0, "mult": 1.0},
            {"params": [net.master[n] for n in index], "weight_decay": 0.0, "mult": 1.0}]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=(0.9, 0.97), eps=1e-12, **({"fused": True} if torch.cuda.is_available() else {}))

    @torch.no_grad()
    def step(self, f, mom=0.95):
        W, M = self.net.W, self.net.master
        lr = self.lr * f
        for (r, c), ms in self.groups.items():
            g = torch.cat([(W[n].grad.reshape(-1, a_, b_).mT if tr else W[n].grad.reshape(-1, a_, b_)) for n, tr, a_, b_ in ms]).float()
            m = self.mom.get((r, c))
            if m is None:
                m = self.mom[r, c] = torch.zeros_like(g)
            m.lerp_(g, 1 - mom)
            u = orthogonal(g.lerp(m, mom)).float() * (0.2 * math.sqrt(c))
            k, ps, us = 0, [], []
            for n, tr, a_, b_ in ms:
                j = M[n].numel() // (r * c)
                x = u[k:k + j]; k += j
                ps.append(M[n]); us.append((x.mT if tr else x).reshape(M[n].shape))
            torch._foreach_mul_(ps, 1 - lr * self.wd)
            torch._foreach_add_(ps, us, alpha=-lr)
        for n in self.rest:
            M[n].grad = None if W[n].grad is None else W[n].grad.float()
        main = [M[n].grad for n in self.rest if "indexer" not in n]
        norm = torch.stack(torch._foreach_norm(main)).norm()
        torch._foreach_mul_(main, 1.0 / norm.clamp_min(1.0))
        for i, gr in enumerate(self.adam.param_groups):
            gr["lr"] = lr * gr["mult"]
        self.adam.step()
        for n in self.net.names:
            W[n].grad = None
        return norm


def positions(w, B, T, q):
    """Query positions for the indexer's loss: half where answers are, half anywhere."""
    h = q // 2
    x = torch.multinomial(w.view(B, T) ** 2 + 1e-4, h, replacement=True)
    return torch.cat([x, torch.randint(T, (B, q - h), device=w.device)], 1)
