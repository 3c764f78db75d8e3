#!/usr/bin/env bash
# Usage: simulated.sh DUET MODULE: a comparison on one simulated GPU. Says "simulated" and "logical devices" wherever it
# names devices; DataParallel on two logical devices ends with single's result.
set -euo pipefail
duet=$(realpath "$1")
DUET_CUDA_MODULE=$(realpath "$2")
export DUET_CUDA_MODULE DUET_SIM_DEVICES=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
status=0
"$duet" compare --quiet --device cuda --precision tf32 --model linear --modes single,dp --devices 2 --data synthetic \
  --train-images 96 --test-images 20 --batch 16 --out out >text 2>&1 || status=$?
cat text
[ $status = 0 ]
expect() { grep -q "$1" "$2" || { echo "no '$1' in $2" >&2; exit 1; }; }
expect '2 logical devices: cuda:0.0 cuda:0.1 on 1 GPU .* simulated GPU.* precision tf32' text
expect '^ dp .* - *2 logical devices on 1 GPU' text
expect '2 logical devices on 1 GPU: this measures overhead, not scaling' text
expect 'per device *moved/step' text
expect 'loss within 0.1 %' text
expect '"device": "cuda (simulated)"' out/results.json
expect '"physical_devices": 1' out/results.json
expect '"precision": "tf32"' out/results.json
expect 'simulated' out/index.html
python3 - <<'PYTHON'
import json
runs = json.load(open("out/results.json"))["runs"]
dp = runs[1]
assert dp["speedup"] is None and dp["efficiency"] is None, dp
assert len(dp["device_memory_mb"]) == 2 and min(dp["device_memory_mb"]) > 0, dp
assert min(dp["moved_bytes_per_step"]) > 8 * 784 * 4, dp
assert abs(runs[0]["train_loss"][-1] - dp["train_loss"][-1]) < 1e-4, (runs[0]["train_loss"], dp["train_loss"])
PYTHON
"$duet" bench step --quiet --device cuda --model linear --modes single,dp --devices 2 --steps 5 --repeats 1 --batch 16 \
  --data synthetic >text
cat text
expect 'on cuda (simulated), precision fp32' text
expect '^ dp .*  2 logical devices on 1 GPU$' text
# Where there is no such GPU: one line, and exit status 1.
status=0
DUET_CUDA_MODULE=/nowhere/libduet_cuda.so "$duet" train --device cuda >text 2>&1 || status=$?
cat text
[ $status = 1 ] && [ "$(wc -l <text)" = 1 ]
expect '^duet: --device cuda: .*was not built or is not installed; looked for /nowhere/libduet_cuda.so' text
