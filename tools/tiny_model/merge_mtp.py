"""Puts the tensors of a multi-token-prediction block into a checkpoint. Plain Python, no packages.

usage: merge_mtp.py MODEL_DIR MTP.safetensors OUT_DIR       (OUT_DIR may be MODEL_DIR)
Writes model.safetensors and config.json; tensors that were there stay byte for byte what they were (an older block of the
same place goes). Order as safetensors writes it: wide types first, then by name.
"""
import json, os, re, struct, sys

ORDER = {"F32": 0, "BF16": 1, "F8_E4M3": 2}


def load(path):
    """{name: (type, shape, bytes)}"""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (d["dtype"], d["shape"], raw[8 + n + d["data_offsets"][0]:8 + n + d["data_offsets"][1]]) for k, d in head.items()}


def store(path, tensors):
    head, at, names = {"__metadata__": {"format": "pt"}}, 0, sorted(tensors, key=lambda k: (ORDER[tensors[k][0]], k))
    for k in names:
        d, s, b = tensors[k]
        head[k] = {"dtype": d, "shape": s, "data_offsets": [at, at + len(b)]}
        at += len(b)
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for k in names:
            f.write(tensors[k][2])
    os.replace(path + ".new", path)


def main(src, block, out):
    conf = json.load(open(os.path.join(src, "config.json")))
    t = conf["text_config"]
    own = re.compile(r"model\.language_model\.layers\.%d\." % t["num_hidden_layers"])
    trunk = {k: v for k, v in load(os.path.join(src, "model.safetensors")).items() if not own.match(k)}
    new = load(block)
    assert all(own.match(k) for k in new)
    t["num_nextn_predict_layers"] = 1
    t["index_share_for_mtp_iteration"] = True
    q = conf.get("quantization_config")
    if q:
        kept = [k for k in q["modules_to_not_convert"] if not own.match(k)]
        kept += [k[:-7] for k, (d, s, _) in new.items() if k.endswith(".weight") and len(s) >= 2 and k + "_scale_inv" not in new]
        q["modules_to_not_convert"] = sorted(kept)
    os.makedirs(out, exist_ok=True)
    store(os.path.join(out, "model.safetensors"), {**trunk, **new})
    text = json.dumps(conf, indent=1)
    open(os.path.join(out, "config.json"), "w").write(text)
    back = load(os.path.join(out, "model.safetensors"))
    assert all(back[k] == v for k, v in trunk.items()) and len(back) == len(trunk) + len(new)
    print(len(trunk), "tensors unchanged,", len(new), "of the block,", os.path.getsize(os.path.join(out, "model.safetensors")), "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:4])
