#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, in four parts: the tests of suite `cuda`, the speed of a training step, compute-sanitizer
# over a short training, and the kernels of a recorded step (where Nsight Compute is installed); about 4 minutes, 8 with
# PyTorch. A test that needs more GPUs than there are is counted apart; any other failure or skip of a test fails the
# check. The last line reads "N passed, N failed".
#
#   tools/gpu_check.sh                    builds what is needed in build-gpu, then checks
#   tools/gpu_check.sh --only PART        tests, speed, sanitizers or kernels alone
#   tools/gpu_check.sh --limit SECONDS    of each part, whose rest then fails; otherwise 450
#   tools/gpu_check.sh --python PYTHON    with PyTorch of that python in the table, in the same rounds
#   tools/gpu_check.sh --out DIR          where the logs go, at most 8 files; otherwise gpu-check-logs
#   tools/gpu_check.sh --bundle DIR       no check: one folder (at most 45 MiB) with programs, their libraries but
#                                         CUDA's, and MNIST, for a machine without network: copy it, run DIR/check.sh
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python='' bundle='' out=$PWD/gpu-check-logs parts='tests speed sanitizers kernels' part_limit=450 only=
usage() { sed -n '2,14p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --python) python=${2:?--python needs a program}; shift 2 ;;
    --out) out=$(realpath -m "${2:?--out needs a folder}"); shift 2 ;;
    --bundle) bundle=${2:?--bundle needs a folder}; shift 2 ;;
    --only) only=${2-}; [[ $only =~ ^(tests|speed|sanitizers|kernels)$ ]] || usage; parts=$only; shift 2 ;;
    --limit) part_limit=${2-}; [[ $part_limit =~ ^[1-9][0-9]*$ ]] || usage; shift 2 ;;
    *) usage ;;
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
mkdir -p "$out" && [ -w "$out" ] || fail "cannot write to $out"

unset DUET_CUDA_MODULE  # nothing here is simulated
export OMP_WAIT_POLICY=passive
first_gpu=${CUDA_VISIBLE_DEVICES-0} first_gpu=${first_gpu%%,*}
passed=0 failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); say "FAILED: $*"; }

timeout -k 5 30 "$duet" info || fail 'duet info fails, or takes more than 30 s'
# Not through a pipe: grep -q leaves it early, and pipefail would count the writer's SIGPIPE.
[[ $(timeout -k 5 30 "$duet" info --json) == *'"why_no_cuda": ""'* ]] || fail 'there is no GPU to check: see above'

seconds_left() { echo $((part_end - SECONDS)); }
# logged FILE LIMIT COMMAND...: adds what the command prints to $out/FILE, and leaves it in $work/log. Status 124 or 137
# where it did not end within LIMIT seconds, or the part's time was up before.
logged() {
  local file=$out/$1 limit=$2 left from status
  shift 2
  left=$(seconds_left)
  [ "$limit" -le "$left" ] || limit=$left
  echo "== $*" >>"$file"
  from=$(wc -c <"$file")
  if [ "$limit" -gt 0 ]; then
    timeout -k 5 "$limit" "$@" >>"$file" 2>&1
    status=$?
  else
    echo "not started: the part's $part_limit s are over" >>"$file"
    status=124
  fi
  tail -c +$((from + 1)) "$file" >"$work/log"
  return $status
}
ended() { [ "$1" = 124 ] || [ "$1" = 137 ]; }  # a status of logged: by its limit

# run_group NAME: the test cases of one source file, in a process of its own, so that a hang or an error after which CUDA
# refuses everything costs no other group.
run_group() {
  local status counts skips few name limit=60 start=$SECONDS
  [[ $1 != test_*nccl* && $1 != test_graph_ranks ]] || limit=150  # NCCL's own timeouts, which name a rank, are 60 s
  [ "$(seconds_left)" -gt 0 ] || { bad "$1 was not run: the tests' $part_limit s are over"; return; }
  logged tests.log $limit "$tests" '-#' "[#$1]" --order decl --durations yes
  status=$?
  counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$work/log" | tail -n 1)
  printf '  %-26s %s\n' "$1" "${counts:-exit status $status}"
  read -r p _ f _ skips _ <<<"${counts:-0 passed, 0 failed, 0 skipped}"
  few=$(grep -c '^skipped: too few GPUs$' "$work/log")
  grep '^skipped:' "$work/log" | grep -v 'too few GPUs$' | sort | uniq -c
  too_few=$((too_few + few)) passed=$((passed + p)) failed=$((failed + f + skips - few))
  if [ "$f" != 0 ] || [ "$status" != 0 ]; then
    # What failed and why: Catch2 prints the name, the place and the values.
    grep -A 12 -E 'FAILED:|^simulator:|^cuda:' "$work/log" | head -n 150
    [ "$f" != 0 ] || bad "$1: exit status $status"
    if ended $status; then
      name=$(last_started "$1")
      say "$1 was ended after $((SECONDS - start)) s, in: ${name:-unknown}"
    fi
  fi
}

# last_started GROUP: the first test case of the group without a duration.
last_started() {
  timeout -k 5 30 "$tests" '-#' "[#$1]" --list-test-names-only --order decl 2>/dev/null | grep -vE '^(All|[0-9]+) ' | while read -r name; do
    [ -z "$name" ] || grep -qF " s: $name" "$work/log" || { echo "$name"; break; }
  done
}

check_tests() {
  local group too_few=0 before=$passed
  say 'tests of suite cuda, each group with a limit of 60 s (150 s with NCCL)'
  for group in $(timeout -k 5 30 "$tests" '-#' --list-tags 2>/dev/null | grep -o '\[#test_[a-z_]*\]' | tr -d '[]#' | sort -u); do
    run_group "$group"
  done
  [ "$passed" -gt "$before" ] || bad 'suite cuda: nothing passed'
  [ "$too_few" = 0 ] || say "$too_few test cases need more GPUs than there are"
}

median() { sort -n | awk '{v[NR] = $1} END {if (NR) printf "%.1f\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print "nan"}'; }

# row NAME: a line of the table of this round, so that what was measured is seen even if the check does not end.
row() {
  printf '  round %d  %-45s %10s us\n' "$round" "$1" "$(median <"$work/part")"
  awk -v name="$1" '{print name "\t" $1}' "$work/part" >>"$out/step-times.tsv"
}
# all_of NAME: its step times; rows: their names.
all_of() { [ ! -f "$out/step-times.tsv" ] || awk -F '\t' -v name="$1" '$1 == name {print $2}' "$out/step-times.tsv"; }
rows() { [ ! -f "$out/step-times.tsv" ] || cut -f 1 "$out/step-times.tsv" | sort -u; }
# time_duet NAME OPTIONS...: a part of the step times of NAME.
time_duet() {
  local name=$1 status
  shift
  logged speed.log 60 "$duet" train --quiet --device cuda --data synthetic --epochs 1 --train-images 25728 --test-images 128 \
    --step-times "$work/steps" "$@"
  status=$?
  if ended $status; then
    bad "$name: not done in time"
  elif [ $status != 0 ]; then
    tail -n 3 "$work/log"
    bad "$name"
  else
    tail -n +21 "$work/steps" >"$work/part"
    row "$name"
  fi
}
# Its standard output are the times.
time_torch() {
  [ -n "$python" ] || return 0
  logged speed.log 90 sh -c 'exec "$@" >"$0"' "$work/part" "$python" "$here/torch_peer.py" --way "$1" --precision "$2" ||
    { tail -n 3 "$work/log"; bad "torch $1 $2"; return; }
  row "torch $1 $2"
}

time_steps() {
  local round precision way name
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
  rows | while read -r name; do printf '%-45s %10s\n' "$name" "$(all_of "$name" | median)"; done
}

train_ten_epochs() {
  local data=(--data synthetic) mnist accuracy
  mnist=$(find_mnist)
  say 'ten epochs at lr 0.05'
  if [ -n "$mnist" ]; then data=(--data "$mnist"); else bad 'ten epochs: no MNIST was found'; fi
  if logged epochs.log 60 "$duet" train --quiet --device cuda --precision tf32 --graph on --epochs 10 --lr 0.05 "${data[@]}" --result "$work/result"; then
    tail -n 1 "$work/log"
    accuracy=$(tail -n 1 "$work/log" | grep -o 'accuracy [0-9.]*' | cut -d ' ' -f 2)
    if awk -v a="$accuracy" 'BEGIN {exit !(a >= 98.9)}'; then good; else bad "accuracy $accuracy %, expected 98.90 % or more"; fi
  else
    tail -n 3 "$work/log"
    bad 'ten epochs (limit 60 s)'
  fi
}

# goal WHAT VALUE LIMIT: reached or missed; a missed one fails nothing.
goal() { awk -v what="$1" -v v="$2" -v l="$3" 'BEGIN {printf "  %-7s %s: %s (goal: at most %s)\n", v + 0 <= l + 0 && v != "nan" ? "reached" : "MISSED", what, v, l}'; }
step_of() { all_of "$1" | median; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a == "nan" || b == "nan") print "nan"; else printf "%.3f\n", a / b}'; }
check_speed() {
  local best
  time_steps
  train_ten_epochs
  say 'goals (on an H200; a missed one fails nothing)'
  best=$(step_of 'duet graph tf32')
  goal 'us a step in TF32 with a graph' "$best" 60
  goal 'ms an epoch of 60,000 in TF32' "$(grep -oE '[0-9.]+ s ' "$work/log" | median | awk '{print $1 == "nan" ? $1 : 1000 * $1}')" 30
  goal 'us a step in TF32, eager' "$(step_of 'duet single tf32')" 400
  goal 'DP on 2 logical devices over single, both as graphs' "$(ratio "$(step_of 'duet dp, 2 logical devices on 1 GPU tf32')" "$best")" 1.15
  [ -z "$python" ] || {
    goal "duet's graph over PyTorch eager" "$(ratio "$best" "$(step_of 'torch eager tf32')")" 0.125
    goal "duet's graph over torch.compile" "$(ratio "$best" "$(step_of 'torch compiled tf32')")" 0.333
    goal "duet's graph over PyTorch's graph" "$(ratio "$best" "$(step_of 'torch graph tf32')")" 0.833
  }
}

# find_tool NAME: a profiler's or sanitizer's program.
find_tool() { command -v "$1" || ls /usr/local/cuda/bin/"$1" /opt/nvidia/*/"$1" /opt/nvidia/*/*/"$1" 2>/dev/null | head -n 1; }

check_sanitizers() {
  local sanitizer check tool graph own status
  sanitizer=$(find_tool compute-sanitizer)
  [ -n "$sanitizer" ] || { say 'skipped: compute-sanitizer is not installed'; return; }
  for check in 'memcheck off' 'racecheck off' 'memcheck on'; do
    # A short training: every kernel of the step, plain and in a graph with its branches. Races are looked for in own
    # kernels only: the libraries' are not ours to judge, and take most of the time. Nor are API calls that fail errors:
    # libraries ask in that way what a GPU can do, and duet checks its own.
    tool=${check% *} graph=${check#* }
    own=(--report-api-errors no)
    [ "$tool" = memcheck ] || own=(--kernel-name kns=duet)
    CUDA_VISIBLE_DEVICES=$first_gpu logged sanitizers.log 120 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 "${own[@]}" "$duet" train --quiet --device cuda --deterministic \
      --mode dp --devices 2 --graph "$graph" --graph-steps 1 --data synthetic --epochs 1 --batch 32 --train-images 160 --test-images 32
    status=$?
    if [ "$status" = 0 ]; then
      good
      say "compute-sanitizer $tool, graph $graph: nothing found"
    elif grep -q 'Device not supported' "$work/log"; then
      say "skipped: compute-sanitizer $tool does not work on this machine (Device not supported)"
    else
      head -n 40 "$work/log"  # the first finding; the end is a summary
      if ended $status; then bad "compute-sanitizer $tool: not done in time"; else bad "compute-sanitizer $tool"; fi
    fi
  done
}

# Which kernels cuDNN and cuBLAS chose for the nodes of a step, and the time of each.
check_kernels() {
  local ncu precision status
  ncu=$(find_tool ncu)
  [ -n "$ncu" ] || { say 'skipped: the kernels of a step (Nsight Compute is not installed)'; return; }
  for precision in tf32 bf16; do
    logged kernels-$precision.log 90 "$ncu" --graph-profiling node --clock-control none --cache-control none --csv --page raw --print-units base --metrics gpu__time_duration.sum --target-processes all \
      "$duet" train --quiet --device cuda --data synthetic --epochs 1 --train-images 1280 --test-images 128 --precision $precision \
      --graph on --graph-steps 1
    status=$?
    say "kernels of a step, $precision (one at a time, and convolutions chosen by times under the profiler)"
    if python3 "$here/kernel_times.py" "$work/log"; then
      good
    elif ended $status; then
      bad "the kernels of a step in $precision: not done in time"
    else
      tail -n 3 "$work/log"
      say "skipped: the kernels of a step in $precision"
    fi
  done
}

# What each part leaves in $out, of which an earlier check's goes.
declare -A files=([tests]=tests.log [speed]='speed.log step-times.tsv epochs.log' [sanitizers]=sanitizers.log
  [kernels]='kernels-tf32.log kernels-bf16.log')
for part in $parts; do
  for file in ${files[$part]}; do rm -f "$out/$file"; done
  part_end=$((SECONDS + part_limit))
  "check_$part"
  say "$part done, $SECONDS s so far"
done
[ $((passed + failed)) -gt 0 ] || bad "${only:-all}: nothing was checked"
say "logs in $out"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
