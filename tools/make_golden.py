#!/usr/bin/env python3
"""Small random checkpoints of unusual shapes with reference logits from transformers (needs torch and transformers 5.17).

usage: make_golden.py OUT [NAME ...]

Each gets OUT/NAME/{config.json, model.safetensors, golden.safetensors, golden.json}: ids.N and logits.N (every position) for a
few lengths, greedy.prompt and greedy.tokens. Computed in FP32 on the CPU with the eager attention of the published code, unless
the case says otherwise. All weights are drawn anew, so that no default of zero or one hides an error; matrices hold BF16 values
and are stored so, vectors are FP32. The vision tower is left out of the file.
"""
import copy, json, os, sys
import torch
from safetensors.torch import load_file, save_file

# Many index heads: with few, pools where every head is negative score exactly 0, and the reference breaks such ties at will.
FLASH = dict(vocab_size=320, hidden_size=120, intermediate_size=88, moe_intermediate_size=40, num_hidden_layers=6, num_attention_heads=3,
             num_key_value_heads=3, n_shared_experts=1, n_routed_experts=6, routed_scaling_factor=2.5, kv_lora_rank=36, q_lora_rank=52,
             qk_rope_head_dim=0, v_head_dim=20, qk_nope_head_dim=28, n_group=1, topk_group=1, num_experts_per_tok=2, norm_topk_prob=True,
             max_position_embeddings=4096, rms_norm_eps=1e-5, pad_token_id=0, eos_token_id=[1, 2],
             mlp_layer_types=["dense", "sparse", "sparse", "dense", "sparse", "sparse"], index_topk=16, index_head_dim=20, index_n_heads=17,
             layer_types=["deepseek_sparse_attention", "linear_attention", "deepseek_sparse_attention", "linear_attention", "linear_attention",
                          "deepseek_sparse_attention"], indexer_types=["full"] * 6, swiglu_limit=10.0, linear_head_dim=24, linear_num_heads=5,
             linear_conv_kernel_dim=4, linear_lower_bound=-5.0, hc_mult=4, hc_eps=1e-6, hc_sinkhorn_iters=20, index_kpool=4,
             index_kpool_always_select_tail=True)
DSA = dict(vocab_size=320, hidden_size=100, intermediate_size=72, moe_intermediate_size=24, num_hidden_layers=6, num_attention_heads=5,
           num_key_value_heads=5, n_shared_experts=1, n_routed_experts=6, routed_scaling_factor=2.5, kv_lora_rank=44, q_lora_rank=36,
           qk_rope_head_dim=12, v_head_dim=18, qk_nope_head_dim=14, n_group=1, topk_group=1, num_experts_per_tok=2, norm_topk_prob=True,
           max_position_embeddings=4096, rms_norm_eps=1e-5, pad_token_id=0, eos_token_id=[1, 2], bos_token_id=None,
           mlp_layer_types=["dense", "sparse", "sparse", "sparse", "dense", "sparse"], index_topk=12, index_head_dim=28, index_n_heads=19,
           indexer_types=["full", "full", "shared", "full", "shared", "shared"], rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
CASES = {
    "glm53-pool1": (FLASH, dict(index_kpool=1)),
    "glm53-pool2": (FLASH, dict(index_kpool=2, n_routed_experts=10, n_group=5, topk_group=2, num_experts_per_tok=3, norm_topk_prob=False)),
    "glm53-pool8": (FLASH, dict(index_kpool=8, index_topk=24, hc_mult=3, hc_sinkhorn_iters=5, linear_conv_kernel_dim=3)),
    "glm53-no-tail": (FLASH, dict(index_kpool_always_select_tail=False)),
    "glm52-groups": (DSA, dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, norm_topk_prob=False, n_shared_experts=2)),
}
LENGTHS = [1, 2, 5, 33, 150]


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    named = list(model.named_parameters()) + [(k, b) for k, b in model.named_buffers() if "correction_bias" in k]
    for k, p in named:
        r = lambda: torch.randn(p.shape, generator=g)
        with torch.no_grad():
            if "visual" in k:
                p.copy_(r() * 0.02)
            elif "correction_bias" in k:
                p.copy_(7 + 0.25 * torch.rand(p.shape, generator=g))
            elif k.endswith("A_log"):
                p.copy_(torch.rand(p.shape, generator=g) * 2)
            elif k.endswith("dt_bias") or k.endswith(".base") or k.endswith("norm.bias") or k.endswith("_ape"):
                p.copy_(r() * 0.5)
            elif k.endswith(".scale"):
                p.copy_(1 + 0.3 * r())
            elif p.dim() == 1:
                p.copy_(1 + 0.3 * r())
            elif "conv1d" in k:
                p.copy_(r() * 0.5)
            else:
                p.copy_(r() / p.shape[-1] ** 0.5)
            if p.dim() > 1:
                p.copy_(p.bfloat16().float())


@torch.no_grad()
def shake(model, seed):
    """A copy whose matrices differ by a relative 3e-6."""
    g = torch.Generator().manual_seed(seed)
    m = copy.deepcopy(model)
    for p in m.parameters():
        if p.dim() > 1:
            p.mul_(1 + 3e-6 * torch.randn(p.shape, generator=g))
    return m


def build(base, over, attn):
    import transformers as T
    kw = dict(base, **over)
    if base is FLASH:
        vision = dict(depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=kw["hidden_size"], image_size=56, projection_intermediate_size=32)
        c = T.Glm5NextConfig(text_config=kw, vision_config=vision, image_token_id=310, video_token_id=311, image_start_token_id=312,
                             image_end_token_id=313, video_start_token_id=314, video_end_token_id=315)
        c._attn_implementation = attn
        m = T.Glm5NextForConditionalGeneration._from_config(c, attn_implementation=attn)
    else:
        c = T.GlmMoeDsaConfig(**kw)
        m = T.GlmMoeDsaForCausalLM._from_config(c, attn_implementation=attn)
    return m.float().eval()


@torch.no_grad()
def main():
    out, names = sys.argv[1], sys.argv[2:] or list(CASES)
    import transformers
    for i, name in enumerate(names):
        base, over = CASES[name]
        attn = "sdpa" if "no-tail" in name else "eager"
        m = build(base, over, attn)
        fill(m, 100 + i)
        g = torch.Generator().manual_seed(i)
        t, info = {}, []
        shaken = [shake(m, k) for k in range(3)]
        for n in LENGTHS:
            # Sparse selection and routing jump at near-ties. Inputs whose logits stay when the weights are shaken by a few
            # roundings have none that another order of summing could move.
            for tries in range(1, 400):
                ids = torch.randint(3, 300, (1, n), generator=g)
                lg = m(input_ids=ids, use_cache=False).logits[0]
                off = max(float((lg - s(input_ids=ids, use_cache=False).logits[0]).abs().max()) for s in shaken)
                if off < 2e-3:
                    break
            else:
                raise SystemExit("%s: no input of %d tokens without a near-tie" % (name, n))
            t["ids.%d" % n], t["logits.%d" % n] = ids[0].int(), lg.float()
            info.append({"tokens": n, "shaken_max_abs": off, "tries": tries})
        gap = 0
        while gap < 0.01:  # a prompt whose continuation is nowhere near a tie
            ids = torch.randint(3, 300, (1, 40), generator=g)
            t["greedy.prompt"] = ids[0].int().clone()
            new, gap = [], 1e9
            for _ in range(16):
                lg = m(input_ids=ids, use_cache=False).logits[0, -1]
                top = lg.topk(2).values
                gap = min(gap, float(top[0] - top[1]))
                new.append(int(lg.argmax()))
                ids = torch.cat([ids, torch.tensor([[new[-1]]])], 1)
        t["greedy.tokens"] = torch.tensor(new, dtype=torch.int32)
        d = os.path.join(out, name)
        m.save_pretrained(d)
        f = os.path.join(d, "model.safetensors")
        save_file({k: v.bfloat16() if v.dim() > 1 else v for k, v in load_file(f).items() if "visual" not in k}, f)
        save_file({k: v.contiguous() for k, v in t.items()}, os.path.join(d, "golden.safetensors"))
        json.dump({"case": name, "reference": "transformers", "version": transformers.__version__, "attention": attn, "seed": 100 + i,
                   "cases": info, "greedy_min_gap": gap}, open(os.path.join(d, "golden.json"), "w"), indent=1)
        print(name, info, "gap %.4f" % gap, os.listdir(d), flush=True)


main()
