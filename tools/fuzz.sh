#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz, with clang's libFuzzer, address and undefined behaviour sanitizers) in build-fuzz and
# runs as many at once as there are cores. Prints a table; the last line reads "N passed, N failed". What was reached is kept in
# build-fuzz/corpus and the next run begins there; inputs that ended a target lie in build-fuzz/found.
#
#   tools/fuzz.sh HOURS [TARGET...]         so long in all, an equal time each; a fraction is allowed
#   tools/fuzz.sh --seconds N [TARGET...]   each target for N seconds
#   tools/fuzz.sh --build FOLDER ...        in a build of tools/test.sh with -Dfuzz=true, not in build-fuzz
#   build-fuzz/tests/fuzz/fuzz_TARGET FILE  runs one input again
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,10p' "$0" >&2; exit 2; }
build=build-fuzz
[ "${1-}" != --build ] || { build=${2-} && shift 2; }
case "${1-}" in
  --seconds) each=${2-}; [ $# -lt 2 ] || shift 2 ;;
  *) each='' hours=${1-}; [ $# = 0 ] || shift ;;
esac
[[ $each =~ ^[1-9][0-9]*$ || ${hours-} =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ ]] || usage

cxx=${CXX:-clang++}
[[ $cxx == *clang* ]] || cxx=clang++
cc=${cxx/clang++/clang}
probe='extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
if ! $cxx -fsanitize=fuzzer,address -x c++ - -o /dev/null <<<"$probe" 2>/dev/null; then
  echo "1 skipped: no clang with libFuzzer (clang and libclang-rt-dev) (1)"
  echo "0 passed, 0 failed"
  exit
fi
if [ ! -f $build/build.ninja ]; then
  CC=$cc CXX=$cxx meson setup $build -Dfuzz=true -Dtests=false -Dcuda=disabled -Dgloo=disabled -Dmpi=disabled -Dbuildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -Dcpp_args=-g1 >$build.log 2>&1 || { cat $build.log >&2; exit 1; }
  mv $build.log $build/setup.log
fi
tools/build.py fuzz $build/compile.log ninja -C $build fuzz || exit 1

seeds=$build/seeds
tests/fuzz/seeds.py $seeds
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(find $seeds -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
at_once=$(nproc)
each=${each:-$(awk -v hours="$hours" -v at_once="$at_once" -v count=${#targets[@]} 'BEGIN { if (at_once > count) at_once = count; printf "%d", hours * 3600 * at_once / count + 1 }')}
mkdir -p $build/found
# What was freed is kept for a while, so that its use is found: 64 MiB of it.
export ASAN_OPTIONS=quarantine_size_mb=64:allocator_may_return_null=1:${ASAN_OPTIONS-} UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

# Checkpoints are made in a folder, with fsync: in memory where that can be had.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

run() {  # run TARGET: prints its row, and what ended it; fails where something did
  local target=$1 log=$build/found/$1.log words=() status=0
  mkdir -p $build/corpus/"$target"
  [ ! -f "$seeds/$target.dict" ] || words=(-dict="$seeds/$target.dict")
  $build/tests/fuzz/fuzz_"$target" -max_total_time="$each" -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$build/found/$target-" "${words[@]}" $build/corpus/"$target" "$seeds/$target" >"$log" 2>&1 || status=$?
  awk -v target="$target" -v crashes=$((status != 0)) '
    /^#[0-9]+.* cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") coverage = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
    /^stat::number_of_executed_units:/ { executions = $2 }
    /^stat::average_exec_per_sec:/ { rate = $2 }
    /^stat::peak_rss_mb:/ { memory = $2 }
    END { printf "%-16s %12d %9d %9d %9d %7d %8d\n", target, executions, rate, coverage, corpus, memory, crashes }' "$log"
  [ $status = 0 ] ||
    grep -E 'ERROR|runtime error|expected:|what\(\)|SUMMARY|Test unit written' "$log" | sed "s/^/failed: $target: /" >&2
  return $status
}

passed=0 failed=0 running=0
next() {  # counts a target that has ended
  if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  running=$((running - 1))
}
printf '%-16s %12s %9s %9s %9s %7s %8s\n' target executions 'per s' coverage corpus MiB crashes
for target in "${targets[@]}"; do
  [ $running -lt "$at_once" ] || next
  run "$target" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do next; done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
