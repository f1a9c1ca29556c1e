"""The multi-token-prediction block beside the frozen trunk, for training and for checks.

Rows are counted by the trunk: row t of draft k (1, 2, ...) belongs to the chain that starts from the trunk's hidden state
h_t. It takes the embedding of token t + k and, for k = 1, h_t, for later drafts the block's own output of draft k - 1; it
predicts token t + k + 1. A chain sees what it will see in a server: the keys of draft 1 for the rows 0 to t, which come
from the trunk's hidden states, and the keys of its own earlier drafts. Drafts 2 and later keep the selection of draft 1.
"""
import json, math, os, struct
import torch
import torch.nn.functional as F
import model
from cpu_reference import read
from model import BF, CUDA

PREFIX = "model.language_model."


def stack(ck, layers):
    """Tensors of a checkpoint under the names of `model.Net`, and the router biases by layer."""
    W, bias, parts = {}, {}, {}
    for k, v in ck.items():
        if k == "lm_head.weight":
            W[k] = v
        if not k.startswith(PREFIX):
            continue
        n = k[len(PREFIX):]
        s = n.split(".")
        if s[0] == "layers" and int(s[1]) not in layers:
            continue
        n = n.replace("hc_attn_", "attn_hc.").replace("hc_ffn_", "ffn_hc.")
        if any(x in n for x in ("A_log", "dt_bias", "f_a_proj", "f_b_proj")):
            n = n.replace("self_attn.", "self_attn.forget_gate.")
        if n.endswith("e_score_correction_bias"):
            bias[int(s[1])] = v
        elif "_conv1d" in n:
            c = n.index("_conv1d") - 1
            parts.setdefault(n[:c] + n[c + 2:], {})["qkv".index(n[c])] = v
        elif ".experts." in n:
            at = ".".join(s[:4]) + "."
            parts.setdefault(at + ("down_proj" if s[5] == "down_proj" else "gate_up_proj"), {})[int(s[4]), s[5] == "up_proj"] = v
        else:
            W[n] = v
    for n, p in parts.items():
        rows = [p[k] for k in sorted(p)]
        if n.endswith("gate_up_proj"):
            rows = [torch.cat(rows[i:i + 2]) for i in range(0, len(rows), 2)]
        W[n] = torch.cat(rows) if "conv1d" in n else torch.stack(rows)
    return W, bias


class Trunk(model.Net):
    """The exported model without gradient: `forward(..., logits=True)` gives what goes into the head."""

    def __init__(self, folder, dev):
        c = json.load(open(os.path.join(folder, "config.json")))["text_config"]
        self.L, self.dev, self.load, self.kept = c["num_hidden_layers"], torch.device(dev), {}, []
        self.mla = [i for i, t in enumerate(c["layer_types"]) if t != "linear_attention"]
        self.checkpoint = read(os.path.join(folder, "model.safetensors"))
        W, bias = stack(self.checkpoint, range(self.L))
        act = BF if CUDA else torch.float32
        self.W = {n: v.to(self.dev, torch.float32 if any(k in n for k in model.FP32) else act) for n, v in W.items()}
        self.bias = {i: b.to(self.dev) for i, b in bias.items()}

    @torch.no_grad()
    def hidden(self, ids, B, T):
        return self.forward(ids, None, None, B, T, sparse=True, logits=True)


def f_join(e, h, enorm, hnorm, eh, ln):
    x = torch.cat([model.rms(e, enorm), model.rms(h, hnorm)], 1) @ eh.t()
    return x, model.rms(x, ln)


def f_mid(x, a, wo, ln):
    x = x + a @ wo.t()
    return x, model.rms(x, ln)


def f_out(x, y, norm):
    return model.rms(x + y, norm)


def f_distil(o, head, h, w):
    """Cross-entropy against the trunk's distribution, and where both have the same first token."""
    z, t = (o @ head.t()).float(), (h @ head.t()).float()
    p = torch.softmax(t, -1)
    ce = torch.logsumexp(z, -1) - (p * z).sum(-1)
    return (ce * w).sum(), z.argmax(-1) == t.argmax(-1)


def shapes(c, layer):
    """Names and shapes of the block's tensors, as `model.Net` has them."""
    E, H, r, kv = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    qk, v, X, m = c["qk_nope_head_dim"], c["v_head_dim"], c["n_routed_experts"], c["moe_intermediate_size"]
    ih, idim = c["index_n_heads"], c["index_head_dim"]
    s = {"enorm.weight": [E], "hnorm.weight": [E], "eh_proj.weight": [E, 2 * E], "shared_head.norm.weight": [E],
         "input_layernorm.weight": [E], "post_attention_layernorm.weight": [E],
         "self_attn.q_a_proj.weight": [r, E], "self_attn.q_a_layernorm.weight": [r], "self_attn.q_b_proj.weight": [H * qk, r],
         "self_attn.kv_a_proj_with_mqa.weight": [kv, E], "self_attn.kv_a_layernorm.weight": [kv],
         "self_attn.kv_b_proj.weight": [H * (qk + v), kv], "self_attn.o_proj.weight": [E, H * v],
         "self_attn.indexer.wq_b.weight": [ih * idim, r], "self_attn.indexer.wk.weight": [idim, E],
         "self_attn.indexer.k_norm.weight": [idim], "self_attn.indexer.k_norm.bias": [idim],
         "self_attn.indexer.weights_proj.weight": [ih, E], "self_attn.indexer.index_kpool_compress_gate": [idim, E],
         "self_attn.indexer.index_kpool_compress_ape": [c["index_kpool"], idim],
         "mlp.gate.weight": [X, E], "mlp.experts.gate_up_proj": [X, 2 * m, E], "mlp.experts.down_proj": [X, E, m],
         "mlp.shared_experts.gate_proj.weight": [m, E], "mlp.shared_experts.up_proj.weight": [m, E], "mlp.shared_experts.down_proj.weight": [E, m]}
    return {"layers.%d.%s" % (layer, n): x for n, x in s.items()}


def later(q, keys, vals, sel):
    """Attention of drafts 2 and later: over what draft 1 selected, and the chain's own rows (equal row number, later drafts)."""
    c = q.shape[-1] ** -0.5
    s = (q.float() @ keys[0].float().transpose(2, 3) * c).masked_fill(~sel, -1e30)
    own = [(q.float() * k.float()).sum(-1, keepdim=True) * c for k in keys[1:]]
    total = torch.logsumexp(s, -1, keepdim=True)
    for x in own:
        total = torch.logaddexp(total, x)
    a = torch.exp(s - total).to(q.dtype) @ vals[0]
    for x, v in zip(own, vals[1:]):
        a = a + torch.exp(x - total).to(q.dtype) * v
    return a


class Block(model.Net):
    """The block: masters in fp32, working copies as in `model.Net`."""

    def __init__(self, trunk, config, values=None, bias=None, seed=1):
        """values: tensors by name to start from; without them a fresh start."""
        self.i = trunk.L
        self.p = "layers.%d." % self.i
        self.dev, self.L, self.mla, self.kept, self.load, self.qat = trunk.dev, self.i + 1, [self.i], [], {}, False
        self.embed, self.head = trunk.W["embed_tokens.weight"], trunk.W["lm_head.weight"]
        g = torch.Generator().manual_seed(seed)
        self.master = {}
        for n, s in shapes(config, self.i).items():
            v = values[n] if values else self.fresh(n, s, g, trunk.W["norm.weight"].float().cpu())
            assert list(v.shape) == s, n
            self.master[n] = v.float().to(self.dev).clone().requires_grad_()
        self.names = list(self.master)
        self.bias = {self.i: torch.zeros(config["n_routed_experts"], device=self.dev) if bias is None else bias.to(self.dev)}
        self.W = {n: p.detach().to(BF if CUDA else torch.float32).clone().requires_grad_() for n, p in self.master.items()}
        self.fp8 = [n for n in self.names if model.is_fp8(n, True)]
        self.refresh()

    @staticmethod
    def fresh(n, s, g, last):
        rnd = lambda x: torch.randn(s, generator=g) * x
        if "compress_ape" in n or n.endswith("k_norm.bias"):
            return torch.zeros(s)
        if n.endswith("shared_head.norm.weight"):
            return torch.full(s, 0.5 * float(last.pow(2).mean().sqrt()))
        if "norm" in n:
            return torch.ones(s)
        if n.endswith("eh_proj.weight"):         # begins as: the trunk's state, and a little of the token
            return torch.cat([rnd(0.5 / s[0] ** 0.5)[:, :s[0]], torch.eye(s[0]) + rnd(0.1 / s[0] ** 0.5)[:, s[0]:]], 1)
        if "compress_gate" in n or n.endswith("mlp.gate.weight"):
            return rnd(0.03)
        return rnd((0.5 if "o_proj" in n or "down_proj" in n else 1.0) * 0.7 / math.sqrt(s[-1]))

    def chains(self, h, nxt, B, T, K, sparse=True, qi=None, valid=None):
        """h [N, hidden]: the trunk's states; nxt [N]: the token after each row. Outputs of drafts 1 to K, and the index loss."""
        W, p = self.W, self.p
        s = p + "self_attn."
        heads = lambda t: t.view(B, T, 8, 32).transpose(1, 2)
        valid = torch.ones(B * T, device=self.dev) if valid is None else valid
        outs, keys, vals, kl, load = [], [], [], 0.0, 0
        o, sel = h, None                         # sel: what draft 1 of each row attends to
        for k in range(K):
            e = F.embedding(torch.roll(nxt, -k), self.embed)
            x, xn = f_join(e, o, *[W[p + n + ".weight"] for n in ("enorm", "hnorm", "eh_proj", "input_layernorm")])
            r, q, kk, v = model.f_mla_in(xn, *[W[s + n + ".weight"] for n in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")])
            keys.append(heads(kk)); vals.append(heads(v))
            if k == 0:
                if qi is not None:
                    kl = self.index_loss(self.i, xn, r, q, kk, B, T, qi)
                sel = self.select(self.i, xn.detach(), r.detach(), B, T) if sparse and T > 256 else None
                a = model.attend(heads(q), keys[0], vals[0], sel)
            else:
                if sel is None:
                    sel = torch.ones(T, T, dtype=torch.bool, device=self.dev).tril()
                a = later(heads(q), keys, vals, sel)
            x, xn = f_mid(x, a.transpose(1, 2).reshape(B * T, -1), W[s + "o_proj.weight"], W[p + "post_attention_layernorm.weight"])
            y, n = model.f_moe(xn, W[p + "mlp.gate.weight"], self.bias[self.i], W[p + "mlp.experts.gate_up_proj"], W[p + "mlp.experts.down_proj"],
                       *[W[p + "mlp.shared_experts.%s_proj.weight" % n] for n in ("gate", "up", "down")], valid)
            load = load + n.detach()
            o = f_out(x, y, W[p + "shared_head.norm.weight"])
            outs.append(o)
        self.load = {self.i: load}
        return outs, kl

    def distil(self, o, h, w, B, T, k):
        """Loss of draft k (from 0) against the trunk, and hits; w [N]: weight of the token after each row."""
        wk = torch.roll(w, -(k + 1)).view(B, T).clone()
        wk[:, T - k - 1:] = 0
        wk = wk.view(-1)
        loss, hit = f_distil(o, self.head, torch.roll(h, -(k + 1), 0), wk)
        return loss, hit, wk


# ------------------------------------------------------------------------------------------------ files
def e4m3_codes(q):
    return q.view(torch.uint8)


def save(path, block):
    """The block's tensors with the released names, in the released types."""
    import export
    order = {"F32": 0, "BF16": 1, "F8_E4M3": 2}
    ten = {PREFIX + block.p + "mlp.gate.e_score_correction_bias": ("F32", block.bias[block.i])}
    for n, p in block.master.items():
        p = p.detach()
        if n not in block.fp8:
            ten.update({k: ("BF16", v.to(BF).view(torch.int16)) for k, v in export.released(n, p).items()})
            continue
        q, s = model.blocks(p)
        ten.update({k: ("F8_E4M3", v) for k, v in export.released(n, e4m3_codes(q.reshape(p.shape))).items()})
        s = s.squeeze(-1).squeeze(-2)
        ten.update({k + "_scale_inv": ("F32", v) for k, v in export.released(n, s).items()})
    head, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for k, (d, v) in sorted(ten.items(), key=lambda x: (order[x[1][0]], x[0])):
        b = v.contiguous().cpu().numpy().tobytes()
        head[k] = {"dtype": d, "shape": list(v.shape), "data_offsets": [at, at + len(b)]}
        at += len(b); blobs.append(b)
    h = json.dumps(head).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h + b"".join(blobs))
