#!/bin/sh
# Run every op benchmark of a build folder and print one table.
#   tools/opbench.sh [BUILD_DIR] [THREADS] [ISA]      defaults: build 0 (one for each processor) auto
# With one thread the processor time is measured, otherwise the time on the wall.
set -e
build=${1:-build}
threads=${2:-0}
isa=${3:-auto}
for b in "$build"/benchmarks/*_bench; do
    [ -x "$b" ] || continue
    case $(basename "$b") in forward_bench | tokenizer_bench | client_bench) continue ;; esac # not ops
    echo "== $(basename "$b")"
    "$b" "$threads" "$isa"
done
