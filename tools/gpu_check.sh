#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the tests of suite `cuda`, compute-sanitizer over some of them, and the speed of a
# training step, in under 8 minutes. Any failure or skip fails it, except where compute-sanitizer is not installed or
# cannot look into the GPU. The last line reads "N passed, N failed".
#
#   tools/gpu_check.sh                    builds what is needed in build-gpu, then checks
#   tools/gpu_check.sh --python PYTHON    with PyTorch of that python in the table, step for step in turn with duet
#   tools/gpu_check.sh --bundle DIR       no check: one folder (at most 45 MiB) with programs, their libraries but
#                                         CUDA's, and MNIST, for a machine without network: copy it, run DIR/check.sh
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python= bundle=
while [ $# -gt 0 ]; do
  case "$1" in
    --python) python=${2:?--python needs a program}; shift 2 ;;
    --bundle) bundle=${2:?--bundle needs a folder}; shift 2 ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
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
  cp "$here/torch_peer.py" "$bundle/"
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

unset DUET_CUDA_MODULE  # nothing here is simulated
export OMP_WAIT_POLICY=passive
passed=0 failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); say "FAILED: $*"; }

"$duet" info || fail 'duet info fails'
# Not through a pipe: grep -q leaves it early, and pipefail would count the writer's SIGPIPE.
[[ $("$duet" info --json) == *'"why_no_cuda": ""'* ]] || fail 'there is no GPU to check: see above'

# count LOG NAME STATUS: adds up a test program's results; a skip is a failure.
count() {
  local counts
  counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1)
  grep '^skipped:' "$1" | sort | uniq -c
  if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2] + BASH_REMATCH[3]))
    [ "${BASH_REMATCH[1]}" -gt 0 ] || bad "$2: nothing ran"
    [ "$3" = 0 ] || [ "${BASH_REMATCH[2]}" != 0 ] || bad "$2: exit status $3"
  else
    tail -n 20 "$1"
    bad "$2: exit status $3"
  fi
}

say 'tests of suite cuda'
timeout 200 "$tests" >"$work/tests.log" 2>&1
count "$work/tests.log" 'suite cuda' $?

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -n 1)
if [ -z "$sanitizer" ]; then
  say 'skipped: compute-sanitizer is not installed'
else
  for tool in memcheck racecheck; do
    # A short training: every kernel of the step, eager. Races are looked for in own kernels only: the libraries' are
    # not ours to judge, and take most of the time.
    own=()
    [ "$tool" = memcheck ] || own=(--kernel-regex kns=duet)
    timeout 70 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 "${own[@]}" "$duet" train --quiet --device cuda \
      --mode dp --devices 2 --data synthetic --epochs 1 --batch 32 --train-images 96 --test-images 32 >"$work/$tool.log" 2>&1
    status=$?
    if [ "$status" = 0 ]; then
      good
      say "compute-sanitizer $tool: nothing found"
    elif grep -q 'Device not supported' "$work/$tool.log"; then
      say "skipped: compute-sanitizer $tool does not work on this machine (Device not supported)"
    else
      tail -n 15 "$work/$tool.log"
      if [ "$status" = 124 ]; then bad "compute-sanitizer $tool: not done within 70 s"; else bad "compute-sanitizer $tool"; fi
    fi
  done
fi

median() { sort -n | awk '{v[NR] = $1} END {if (NR) printf "%.1f\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2; else print "nan"}'; }
mnist=$(find_mnist)

# time_duet NAME OPTIONS...: a part of the step times of NAME.
time_duet() {
  local name=$1
  shift
  "$duet" train --quiet --device cuda --data synthetic --epochs 1 --train-images 25728 --test-images 128 \
    --step-times "$work/steps" "$@" >"$work/log" 2>&1 || { tail -n 3 "$work/log"; bad "$name"; return; }
  tail -n +21 "$work/steps" >>"$work/times $name"
}
time_torch() {
  [ -n "$python" ] || return 0
  timeout 60 "$python" "$here/torch_peer.py" --way "$1" --precision "$2" >>"$work/times torch $1 $2" 2>"$work/log" ||
    { tail -n 3 "$work/log"; bad "torch $1 $2"; }
}

say 'speed: steps of 128 images, in turn, 3 rounds'
for round in 1 2 3; do
  for precision in tf32 fp32 bf16; do
    time_duet "duet single $precision" --mode single --precision $precision --graph off
    time_duet "duet graph $precision" --mode single --precision $precision --graph on
  done
  time_duet 'duet dp, 2 logical devices on 1 GPU tf32' --mode dp --devices 2 --precision tf32
  for way in eager compiled graph; do time_torch $way tf32; done
done
[ -n "$python" ] || say 'without PyTorch in the table: --python PYTHON adds it'
printf '%-45s %10s\n' 'median step' us
for file in "$work/times "*; do printf '%-45s %10s\n' "${file##*/times }" "$(median <"$file")"; done

say 'ten epochs at lr 0.05'
data=(--data synthetic)
if [ -n "$mnist" ]; then data=(--data "$mnist"); else bad 'ten epochs: no MNIST was found'; fi
if "$duet" train --quiet --device cuda --precision tf32 --graph on --epochs 10 --lr 0.05 "${data[@]}" --result "$work/result" >"$work/log" 2>&1; then
  tail -n 1 "$work/log"
  accuracy=$(tail -n 1 "$work/log" | grep -o 'accuracy [0-9.]*' | cut -d ' ' -f 2)
  if awk -v a="$accuracy" 'BEGIN {exit !(a >= 98.9)}'; then good; else bad "accuracy $accuracy %, expected 98.90 % or more"; fi
else
  tail -n 3 "$work/log"
  bad 'ten epochs'
fi

# goal WHAT VALUE LIMIT: reached or missed; says so, and fails nothing.
goal() { awk -v what="$1" -v v="$2" -v l="$3" 'BEGIN {printf "  %-7s %s: %s (goal: at most %s)\n", v + 0 <= l + 0 && v != "nan" ? "reached" : "MISSED", what, v, l}'; }
step_of() { if [ -f "$work/times $1" ]; then median <"$work/times $1"; else echo nan; fi; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {if (a == "nan" || b == "nan") print "nan"; else printf "%.3f\n", a / b}'; }
say 'goals (on an H200; a missed one fails nothing)'
best=$(step_of 'duet graph tf32')
goal 'us a step in TF32 with a graph' "$best" 60
goal 'ms an epoch of 60,000 in TF32' "$(grep -oE '[0-9.]+ s ' "$work/log" | median | awk '{print 1000 * $1}')" 30
goal 'us a step in TF32, eager' "$(step_of 'duet single tf32')" 400
goal 'DP on 2 logical devices over single' "$(ratio "$(step_of 'duet dp, 2 logical devices on 1 GPU tf32')" "$(step_of 'duet single tf32')")" 1.15
[ -z "$python" ] || {
  goal "duet's graph over PyTorch eager" "$(ratio "$best" "$(step_of 'torch eager tf32')")" 0.125
  goal "duet's graph over torch.compile" "$(ratio "$best" "$(step_of 'torch compiled tf32')")" 0.333
  goal "duet's graph over PyTorch's graph" "$(ratio "$best" "$(step_of 'torch graph tf32')")" 0.833
}
say "$SECONDS s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
