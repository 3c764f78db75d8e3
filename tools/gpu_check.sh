#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the tests of suite `cuda`, the speed of a training step, the kernels of a recorded
# step (where Nsight Compute is installed), and compute-sanitizer over a short training; about 4 minutes, 8 with PyTorch.
# A test that needs more GPUs than there are is counted apart; any other failure or skip of a test fails the check. Every
# log is kept. The last line reads "N passed, N failed".
#
#   tools/gpu_check.sh                    builds what is needed in build-gpu, then checks
#   tools/gpu_check.sh --python PYTHON    with PyTorch of that python in the table, in the same rounds
#   tools/gpu_check.sh --out DIR          where the logs go; otherwise gpu-check-logs
#   tools/gpu_check.sh --bundle DIR       no check: one folder (at most 45 MiB) with programs, their libraries but
#                                         CUDA's, and MNIST, for a machine without network: copy it, run DIR/check.sh
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python= bundle= out=$PWD/gpu-check-logs
while [ $# -gt 0 ]; do
  case "$1" in
    --python) python=${2:?--python needs a program}; shift 2 ;;
    --out) out=$(realpath -m "${2:?--out needs a folder}"); shift 2 ;;
    --bundle) bundle=${2:?--bundle needs a folder}; shift 2 ;;
    *) sed -n '2,12p' "$0" >&2; exit 2 ;;
  esac
done
say() { echo "gpu_check: $*"; }
fail() { echo "gpu_check: $*" >&2; exit 1; }

build_all() {
  cd "$here/.." || exit 1
  tools/setup.sh || exit 1
  [ -f build-gpu/build.ninja ] ||
    meson setup build-gpu -Dbuildtype=release -Db_ndebug=false -Dcuda=enabled >build-gpu.log 2>&1 ||
    { tail -n 5 build-gpu.log >&2; exit 1; }
  mv -f build-gpu.log build-gpu/setup.log 2>/dev/null
  say 'building (log in build-gpu/compile.log)'
  ninja -C build-gpu cli/duet tests/cuda/test_cuda lib/backend/cuda/libduet_cuda.so $(cd build-gpu && ninja -t targets all | grep -o '^ddp/[a-z]*/libduet_[a-z]*\.so') \
    >build-gpu/compile.log 2>&1 || { tail -n 30 build-gpu/compile.log >&2; exit 1; }
}

# Prints the folder with MNIST's four files.
find_mnist() {
  local folder
  for folder in ${DUET_DATA:+"$DUET_DATA"} "$here/mnist" "$here/../../shared/data" "$here/../data" "$HOME/.cache/duet"; do
    for folder in "$folder" "$folder/mnist"; do
      if ls "$folder"/train-images-idx3-ubyte* >/dev/null 2>&1; then echo "$folder"; return; fi
    done
  done
}

make_bundle() {
  local stage=$work file mnist
  mkdir -p "$stage/bin" "$stage/lib/duet" "$bundle/mnist"
  cp build-gpu/cli/duet build-gpu/tests/cuda/test_cuda "$stage/bin/"
  cp -L build-gpu/libduet.so.* "$stage/lib/" 2>/dev/null
  cp build-gpu/lib/backend/cuda/libduet_cuda.so "$stage/lib/duet/"
  cp build-gpu/ddp/*/libduet_*.so "$stage/lib/duet/" 2>/dev/null
  rm -f "$stage"/lib/*.symbols
  # The C library belongs to the machine; everything else that is not NVIDIA's goes along.
  for file in "$stage"/bin/* "$stage"/lib/*.so* "$stage"/lib/duet/*; do
    ldd "$file" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
  done | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so|libduet|lib(cuda|cublas|cudnn|nccl|nvrtc)' |
    while read -r file; do cp -L "$file" "$stage/lib/"; done
  strip --strip-unneeded "$stage"/bin/* "$stage"/lib/*.so* "$stage"/lib/duet/* 2>/dev/null
  tar -C "$stage" -czf "$bundle/programs.tar.gz" bin lib || exit 1
  cp "$here/gpu_check.sh" "$bundle/check.sh"
  cp "$here/torch_peer.py" "$here/kernel_times.py" "$bundle/"
  mnist=$(find_mnist)
  if [ -n "$mnist" ]; then cp "$mnist"/{train,t10k}-*-ubyte.gz "$bundle/mnist/"; else say 'without MNIST: none was found'; fi
  local mib
  mib=$(du -sm "$bundle" | cut -f1)
  [ "$mib" -le 45 ] || fail "$bundle has $mib MiB, at most 45 are wanted"
  say "$bundle has $mib MiB; on the other machine run $bundle/check.sh"
}

# In a bundle: unpacks it, and finds CUDA's libraries on this machine.
use_bundle() {
  tar -C "$work" -xzf "$here/programs.tar.gz" || exit 1
  local folders= site
  for site in "${python:-python3}" python3; do
    site=$("$site" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null) || continue
    folders+=$(ls -d "$site"/nvidia/*/lib 2>/dev/null | tr '\n' ':')
  done
  folders="$work/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders${CUDA_HOME:-/usr/local/cuda}/lib64"
  # Only for these programs: PyTorch has a C++ library of its own.
  for program in duet test_cuda; do
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$folders" "$work/bin/$program" >"$work/$program"
    chmod +x "$work/$program"
  done
  duet=$work/duet tests=$work/test_cuda
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -f "$here/programs.tar.gz" ]; then
  use_bundle
else
  build_all
  if [ -n "$bundle" ]; then make_bundle; exit 0; fi
  duet=$PWD/build-gpu/cli/duet tests=$PWD/build-gpu/tests/cuda/test_cuda
fi
mkdir -p "$out" && rm -f "$out"/*.log "$out"/*.us || fail "cannot write to $out"

unset DUET_CUDA_MODULE  # nothing here is simulated
export OMP_WAIT_POLICY=passive
passed=0 failed=0 too_few=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); say "FAILED: $*"; }

timeout -k 5 30 "$duet" info || fail 'duet info fails, or takes more than 30 s'
# Not through a pipe: grep -q leaves it early, and pipefail would count the writer's SIGPIPE.
[[ $(timeout -k 5 30 "$duet" info --json) == *'"why_no_cuda": ""'* ]] || fail 'there is no GPU to check: see above'

# run_group NAME: the test cases of one source file, in a process of its own, so that a hang or an error after which CUDA
# refuses everything costs no other group.
run_group() {
  local log=$out/$1.log status counts skips few name limit=60
  [[ $1 != test_*nccl* && $1 != test_graph_ranks ]] || limit=150  # NCCL's own timeouts, which name a rank, are 60 s
  timeout -k 5 $limit "$tests" '-#' "[#$1]" --order decl --durations yes >"$log" 2>&1
  status=$?
  counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
  printf '  %-26s %s\n' "$1" "${counts:-exit status $status}"
  read -r p _ f _ skips _ <<<"${counts:-0 passed, 0 failed, 0 skipped}"
  few=$(grep -c '^skipped: too few GPUs$' "$log")
  grep '^skipped:' "$log" | grep -v 'too few GPUs$' | sort | uniq -c
  too_few=$((too_few + few)) passed=$((passed + p)) failed=$((failed + f + skips - few))
  if [ "$f" != 0 ] || [ "$status" != 0 ]; then
    # What failed and why: Catch2 prints the name, the place and the values.
    grep -A 12 -E 'FAILED:|^simulator:|^cuda:' "$log" | head -n 150
    [ "$f" != 0 ] || bad "$1: exit status $status"
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
      name=$(last_started "$1" "$log")
      say "$1 was ended after $limit s, in: ${name:-unknown}"
    fi
  fi
}

# last_started GROUP LOG: the first test case of the group without a duration.
last_started() {
  "$tests" '-#' "[#$1]" --list-test-names-only --order decl 2>/dev/null | grep -vE '^(All|[0-9]+) ' | while read -r name; do
    [ -z "$name" ] || grep -qF " s: $name" "$2" || { echo "$name"; break; }
  done
}

say 'tests of suite cuda, each group with a limit of 60 s (150 s with NCCL)'
for group in $("$tests" '-#' --list-tags 2>/dev/null | grep -o '\[#test_[a-z_]*\]' | tr -d '[]#' | sort -u); do run_group "$group"; done
[ "$passed" -gt 0 ] || bad 'suite cuda: nothing ran'
[ "$too_few" = 0 ] || say "$too_few test cases need more GPUs than there are"
say "$SECONDS s so far"

median() { sort -n | awk '{v[NR] = $1} END {if (NR) printf "%.1f\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print "nan"}'; }
mnist=$(find_mnist)

# row NAME: a line of the table of this round, so that what was measured is seen even if the check does not end.
row() { printf '  round %d  %-45s %10s us\n' "$round" "$1" "$(median <"$work/part")"; cat "$work/part" >>"$out/$1.us"; }
# time_duet NAME OPTIONS...: a part of the step times of NAME.
time_duet() {
  local name=$1
  shift
  timeout -k 5 60 "$duet" train --quiet --device cuda --data synthetic --epochs 1 --train-images 25728 --test-images 128 \
    --step-times "$work/steps" "$@" >"$out/$name.log" 2>&1
  case $? in
    0) ;;
    124 | 137) bad "$name: not done within 60 s"; return ;;
    *) tail -n 3 "$out/$name.log"; bad "$name"; return ;;
  esac
  tail -n +21 "$work/steps" >"$work/part"
  row "$name"
}
time_torch() {
  [ -n "$python" ] || return 0
  timeout 90 "$python" "$here/torch_peer.py" --way "$1" --precision "$2" >"$work/part" 2>"$out/torch $1 $2.log" ||
    { tail -n 3 "$out/torch $1 $2.log"; bad "torch $1 $2"; return; }
  row "torch $1 $2"
}

first_gpu=${CUDA_VISIBLE_DEVICES-0} first_gpu=${first_gpu%%,*}
say 'speed: steps of 128 images, 3 interleaved rounds'
for round in 1 2 3; do
  for precision in tf32 fp32 bf16; do
    time_duet "duet single $precision" --mode single --precision $precision --graph off
    time_duet "duet graph $precision" --mode single --precision $precision --graph on
  done
  CUDA_VISIBLE_DEVICES=$first_gpu time_duet 'duet dp, 2 logical devices on 1 GPU tf32' --mode dp --devices 2 --precision tf32 --graph on
  for way in eager compiled graph; do time_torch $way tf32; done
done
[ -n "$python" ] || say 'without PyTorch in the table: --python PYTHON adds it'
printf '%-45s %10s\n' 'median step' us
for file in "$out"/*.us; do printf '%-45s %10s\n' "$(basename "$file" .us)" "$(median <"$file")"; done

say 'ten epochs at lr 0.05'
data=(--data synthetic) log=$out/epochs.log
if [ -n "$mnist" ]; then data=(--data "$mnist"); else bad 'ten epochs: no MNIST was found'; fi
if timeout -k 5 60 "$duet" train --quiet --device cuda --precision tf32 --graph on --epochs 10 --lr 0.05 "${data[@]}" --result "$work/result" >"$log" 2>&1; then
  tail -n 1 "$log"
  accuracy=$(tail -n 1 "$log" | grep -o 'accuracy [0-9.]*' | cut -d ' ' -f 2)
  if awk -v a="$accuracy" 'BEGIN {exit !(a >= 98.9)}'; then good; else bad "accuracy $accuracy %, expected 98.90 % or more"; fi
else
  tail -n 3 "$log"
  bad 'ten epochs (limit 60 s)'
fi

# goal WHAT VALUE LIMIT: reached or missed; a missed one fails nothing.
goal() { awk -v what="$1" -v v="$2" -v l="$3" 'BEGIN {printf "  %-7s %s: %s (goal: at most %s)\n", v + 0 <= l + 0 && v != "nan" ? "reached" : "MISSED", what, v, l}'; }
step_of() { if [ -f "$out/$1.us" ]; then median <"$out/$1.us"; else echo nan; fi; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a == "nan" || b == "nan") print "nan"; else printf "%.3f\n", a / b}'; }
say 'goals (on an H200; a missed one fails nothing)'
best=$(step_of 'duet graph tf32')
goal 'us a step in TF32 with a graph' "$best" 60
goal 'ms an epoch of 60,000 in TF32' "$(grep -oE '[0-9.]+ s ' "$log" | median | awk '{print 1000 * $1}')" 30
goal 'us a step in TF32, eager' "$(step_of 'duet single tf32')" 400
goal 'DP on 2 logical devices over single, both as graphs' "$(ratio "$(step_of 'duet dp, 2 logical devices on 1 GPU tf32')" "$best")" 1.15
[ -z "$python" ] || {
  goal "duet's graph over PyTorch eager" "$(ratio "$best" "$(step_of 'torch eager tf32')")" 0.125
  goal "duet's graph over torch.compile" "$(ratio "$best" "$(step_of 'torch compiled tf32')")" 0.333
  goal "duet's graph over PyTorch's graph" "$(ratio "$best" "$(step_of 'torch graph tf32')")" 0.833
}
say "$SECONDS s so far"

# find_tool NAME: a profiler's or sanitizer's program.
find_tool() { command -v "$1" || ls /usr/local/cuda/bin/"$1" /opt/nvidia/*/"$1" /opt/nvidia/*/*/"$1" 2>/dev/null | head -n 1; }

# Which kernels cuDNN and cuBLAS chose for the nodes of a step, and the time of each.
ncu=$(find_tool ncu)
if [ -z "$ncu" ]; then
  say 'skipped: the kernels of a step (Nsight Compute is not installed)'
else
  for precision in tf32 bf16; do
    log=$out/kernels-$precision.log
    timeout 90 "$ncu" --graph-profiling node --clock-control none --csv --page raw --print-units base --metrics gpu__time_duration.sum --target-processes all \
      "$duet" train --quiet --device cuda --data synthetic --epochs 1 --train-images 1280 --test-images 128 --precision $precision \
      --graph on --graph-steps 1 >"$log" 2>&1
    say "kernels of a step, $precision (one at a time, and convolutions chosen by times under the profiler)"
    python3 "$here/kernel_times.py" "$log" || { tail -n 3 "$log"; say "skipped: the kernels of a step in $precision"; }
  done
fi

sanitizer=$(find_tool compute-sanitizer)
if [ -z "$sanitizer" ]; then
  say 'skipped: compute-sanitizer is not installed'
else
  for check in 'memcheck off' 'racecheck off' 'memcheck on'; do
    # A short training: every kernel of the step, plain and in a graph with its branches. Races are looked for in own
    # kernels only: the libraries' are not ours to judge, and take most of the time.
    tool=${check% *} graph=${check#* } own=()
    log=$out/$tool-graph-$graph.log
    [ "$tool" = memcheck ] || own=(--kernel-name kns=duet)
    CUDA_VISIBLE_DEVICES=$first_gpu timeout 120 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 "${own[@]}" "$duet" train --quiet --device cuda --deterministic \
      --mode dp --devices 2 --graph "$graph" --graph-steps 1 --data synthetic --epochs 1 --batch 32 --train-images 160 --test-images 32 >"$log" 2>&1
    status=$?
    if [ "$status" = 0 ]; then
      good
      say "compute-sanitizer $tool, graph $graph: nothing found"
    elif grep -q 'Device not supported' "$log"; then
      say "skipped: compute-sanitizer $tool does not work on this machine (Device not supported)"
    else
      head -n 40 "$log"  # the first finding; the end is a summary
      if [ "$status" = 124 ]; then bad "compute-sanitizer $tool: not done within 120 s"; else bad "compute-sanitizer $tool"; fi
    fi
  done
fi
say "$SECONDS s; logs in $out"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
