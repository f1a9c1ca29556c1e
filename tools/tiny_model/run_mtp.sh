#!/bin/bash
# Trains the multi-token-prediction block of MODEL_DIR on one GPU machine, puts it into a copy of the model and measures it.
# usage: run_mtp.sh MODEL_DIR OUT SECONDS [options of train_mtp.py]
# Expects corpus/ and tok/ here. OUT receives mtp.safetensors, mtp_master.pt, mtp.json, train_mtp.log, check_mtp.log, and
# merged/ with the model that has the block.
set -u
MODEL=$1; OUT=$2; SECS=$3; shift 3
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
mkdir -p "$OUT/merged"
python3 train_mtp.py --model "$MODEL" --corpus corpus --tok tok --out "$OUT" --seconds "$SECS" "$@" 2>&1 | tee "$OUT/train_mtp.log"
ls "$OUT/mtp.safetensors" || exit 1
cp "$MODEL"/*.json "$MODEL/prompts.jsonl" "$OUT/merged/"
python3 merge_mtp.py "$MODEL" "$OUT/mtp.safetensors" "$OUT/merged" || exit 1
python3 check_mtp.py "$OUT/merged" ${CHECK---corpus corpus --n 12 --max 16384} --json "$OUT/mtp.json" 2>"$OUT/check.err" | tee "$OUT/check_mtp.log"
tail -n 3 "$OUT/check.err"
ls "$OUT/mtp.json"
