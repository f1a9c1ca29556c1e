#!/bin/sh
# The measurements of `make bench`: every op against this machine's limits, then tokens/s of whole steps.
# usage: tools/bench.sh BUILD     (docs/measuring.md says how to read it)
set -eu
build=$1
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
grep -m1 'model name' /proc/cpuinfo 2>/dev/null || true
echo "load average $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || echo unknown): other programs on the machine show in every figure"
tools/opbench.sh "$build"
echo
"$build/benchmarks/forward_bench" models/tiny-glm-5.3-flash
"$build/benchmarks/forward_bench" models/tiny-glm-5.3-flash --kv fp8
"$build/benchmarks/forward_bench" bench/configs/glm-5.3-flash-cut --dummy --context 128 --seqs 8
"$build/benchmarks/tokenizer_bench" models/tiny-glm-5.3-flash 2>/dev/null || true
