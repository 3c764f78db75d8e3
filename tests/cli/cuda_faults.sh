#!/usr/bin/env bash
# Usage: cuda_faults.sh DUET MODULE: what can be wrong with GPUs and their libraries, on simulated ones: `duet train` ends
# with status 1 and one line that says what is wrong, `duet info` says it too and goes on.
set -euo pipefail
duet=$(realpath "$1")
DUET_CUDA_MODULE=$(realpath "$2")
export DUET_CUDA_MODULE
passed=0 failed=0
expect() {  # expect WHAT TEXT: the last output has a line with this text
  if grep -qE "$2" text; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1))
  echo "$1: no '$2' in:" >&2
  cat text >&2
}
fails() {  # fails WHAT MESSAGE [VARIABLE=VALUE...] [-- TRAIN'S OPTIONS]
  local what=$1 message=$2 settings=() status=0
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do settings+=("$1"); shift; done
  [ $# = 0 ] || shift
  (export "${settings[@]}"; timeout 200 "$duet" train --quiet --device cuda --data synthetic --train-images 64 \
    --test-images 20 --batch 16 --epochs 1 "$@") >out 2>text || status=$?
  sed -i '/^simulator: /d' text
  [ $status = 1 ] && [ "$(wc -l <text)" = 1 ] || { failed=$((failed + 1)); echo "$what: status $status" >&2; cat text >&2; }
  expect "$what" "^duet: $message"
}
informs() {
  (export "${@:3}"; "$duet" info) >text 2>&1 || { failed=$((failed + 1)); echo "$1: duet info failed" >&2; }
  expect "$1, in duet info" "$2"
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

for say in "fails" "informs"; do
  gone='no NVIDIA driver is loaded' old='the driver is too old: it serves CUDA 11\.8, duet was built for CUDA 13\.[0-9]+' none='the driver finds no GPU'
  [ $say = fails ] && gone="--device cuda: $gone" old="--device cuda: $old" none="--device cuda: $none"
  $say 'no driver' "$gone" DUET_SIM_DRIVER=0 DUET_SIM_FAIL=cudaGetDeviceCount:1+:35
  $say 'old driver' "$old" DUET_SIM_DRIVER=11080 DUET_SIM_FAIL=cudaGetDeviceCount:1+:35
  $say 'no GPU' "$none" DUET_SIM_FAIL=cudaGetDeviceCount:1+:100
done
fails 'busy' '.*busy or unavailable \(cudaErrorDevicesUnavailable\); another program may hold the GPU exclusively' \
  DUET_SIM_FAIL=cudaStreamCreateWithPriority:1:46
fails 'kernels for other GPUs' '.*no kernel image .* see the build.s option gpu_archs' DUET_SIM_FAIL=kernel:1+:209
fails 'out of memory' '[a-z0-9]+ \([A-Za-z0-9]+\): out of memory on cuda:0: asked for [0-9]+ bytes, but [0-9]+ of 33554432 bytes are free; this process holds [0-9]+ bytes there, other programs' \
  DUET_SIM_MEMORY=32
fails 'out of memory in a replica' 'replica [01] on device cuda:0\.[01]: [a-z0-9]+ \([A-Za-z0-9]+\): out of memory on cuda:0\.[01]: asked for' \
  DUET_SIM_MEMORY=40 DUET_SIM_DEVICES=1 -- --mode dp --devices 2
fails 'cuDNN of another major version' '[a-z0-9]+ \([A-Za-z0-9]+\): cuDNN 10[0-9]* was found, but duet was built for cuDNN 9' DUET_SIM_CUDNN_VERSION=100000
fails 'cuBLAS of another major version' '[a-z0-9]+ \([A-Za-z0-9]+\): cuBLAS 14 was found, but duet was built for cuBLAS 13' DUET_SIM_CUBLAS_MAJOR=14
fails 'TF32 forced from outside' 'NVIDIA_TF32_OVERRIDE=1 makes .* precision fp32 is set' NVIDIA_TF32_OVERRIDE=1
fails 'a recording that fails, of graphs that were asked for' 'cuda: making a graph of a step: ' \
  DUET_SIM_FAIL=cudaGraphInstantiate:1 -- --graph on
fails 'a recording that fails, of graphs of so many steps' 'cuda: recording a step: ' \
  DUET_SIM_FAIL=cudaStreamBeginCapture:1 -- --graph-steps 1
hash_of() {  # hash_of [OPTION...]: trains, and prints the parameters' hash
  rm -f result.json
  "$duet" train --quiet --device cuda --data synthetic --train-images 64 --test-images 20 --batch 16 --epochs 1 \
    --result result.json "$@" >out 2>text
  grep -o '"parameters_sha256": *"[0-9a-f]*"' result.json
}
plain=$(hash_of --graph off)
fallen=$(DUET_SIM_FAIL=cudaGraphInstantiate:1 hash_of) || fallen=failed
expect 'plain steps after a failed recording' '^duet: steps are not recorded as CUDA graphs from here on: cuda: making a graph of a step: '
if [ "$fallen" = "$plain" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "after a failed recording: $fallen, plain: $plain" >&2; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
