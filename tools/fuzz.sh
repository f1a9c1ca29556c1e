#!/bin/sh
# Run every fuzz target for the given seconds: tools/fuzz.sh BUILD SECONDS. A finding ends it with status 1 and leaves
# the input under BUILD/fuzz/findings.
set -eu
build=$1
seconds=$2
mkdir -p "$build/fuzz/findings"
status=0
n=0
for target in "$build"/fuzz/*_fuzz; do
    [ -x "$target" ] || continue
    name=$(basename "$target")
    corpus="$build/fuzz/corpus-$name"
    mkdir -p "$corpus"
    seeds="tests/fixtures/fuzz/$name"
    [ -d "$seeds" ] || seeds=""
    echo "fuzz: $name for $seconds s"
    # shellcheck disable=SC2086
    if ! "$target" -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=4096 -print_final_stats=0 \
        -artifact_prefix="$build/fuzz/findings/$name-" "$corpus" $seeds >"$build/fuzz/$name.log" 2>&1; then
        echo "fuzz: $name FAILED"
        tail -n 40 "$build/fuzz/$name.log"
        status=1
    else
        grep -E 'DONE|Done' "$build/fuzz/$name.log" | tail -n 1
    fi
    n=$((n + 1))
done
[ "$n" -gt 0 ] || { echo "fuzz: no targets in $build/fuzz" >&2; exit 1; }
exit $status
