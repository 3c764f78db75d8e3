#!/usr/bin/env bash
# Usage: simulated.sh DUET MODULE NCCL_MODULE: a comparison on one simulated GPU. Says "simulated" and "logical devices" wherever it
# names devices; DataParallel on two logical devices ends with single's result, steps as graphs with that of plain ones.
set -euo pipefail
duet=$(realpath "$1")
DUET_CUDA_MODULE=$(realpath "$2")
nccl=$(realpath "$3")
export DUET_CUDA_MODULE DUET_SIM_DEVICES=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
status=0
"$duet" compare --quiet --device cuda --precision tf32 --model linear --modes single,dp --devices 2 --data synthetic \
  --train-images 96 --test-images 20 --batch 16 --time-budget 6 --out out --wide >text 2>&1 || status=$?
cat text
[ $status = 0 ]
expect() { grep -q "$1" "$2" || { echo "no '$1' in $2" >&2; exit 1; }; }
expect '2 logical devices: cuda:0.0 cuda:0.1 on 1 GPU .* simulated GPU.* precision tf32' text
expect '^ dp, graph .* - *2 logical devices on 1 GPU' text
expect '2 logical devices on 1 GPU: this measures overhead, not scaling' text
expect 'per device *moved/step' text
expect 'loss within 0.1 %' text
expect '^ single, graph ' text
expect '"device": "cuda (simulated)"' out/results.json
expect '"physical_devices": 1' out/results.json
expect '"precision": "tf32"' out/results.json
expect 'simulated' out/index.html
expect 'Memory of every device' out/index.html
expect 'shares of steps without CUDA graphs that waited for the GPU after each part' out/index.html
python3 - <<'PYTHON'
import json
runs = json.load(open("out/results.json"))["runs"]
dp = runs[1]
assert runs[0]["graph"] and dp["graph"], runs
assert dp["speedup"] is None and dp["efficiency"] is None, dp
assert all(run["eager_parts"] and run["step_us"]["forward"] > 0 and run["step_us"]["backward"] > 0 for run in runs), runs
assert dp["rounds_us"] and len(runs[2]["rank_step_us"]) == 2 and runs[2]["mode"] == "copies", runs
assert len(dp["device_memory_mb"]) == 2 and min(dp["device_memory_mb"]) > 0, dp
assert min(dp["moved_bytes_per_step"]) > 8 * 784 * 4, dp
assert abs(runs[0]["train_loss"][-1] - dp["train_loss"][-1]) < 1e-4, (runs[0]["train_loss"], dp["train_loss"])
PYTHON
"$duet" compare --quiet --device cuda --precision tf32 --model linear --modes single,dp --devices 2 --data synthetic \
  --train-images 96 --test-images 20 --batch 16 --time-budget 6 --out out >text
cat text
expect 'simulated GPU, .* tf32 . linear' text
expect 'Nothing is concluded\. 2 logical devices on 1 GPU: this measures overhead, not scaling\.' text
expect '^ *dp, graph 2 .* by design$' text
# Several steps to a point of the loss curve, and a last batch of its own. Without hashes, two steps to a graph.
for devices in 1 2; do
  for graph in auto off; do
    for several in '' hashes; do
      "$duet" train --device cuda --model linear --mode dp --devices $devices --graph $graph --data synthetic --train-images 99 \
        --test-images 20 --batch 2 --epochs 2 --momentum 0.9 --result $graph$several --step-times $graph.times \
        ${several:+--fingerprints $graph.$several} >text
      cat text
    done
  done
  expect 'no CUDA graphs: --graph off$' text
  # A checkpoint within a point of the loss curve, and behind an odd number of steps.
  for from in "--checkpoint kept$devices --checkpoint-every 7" "--resume kept$devices/checkpoint-00000098.safetensors"; do
    "$duet" train --quiet --device cuda --model linear --mode dp --devices $devices --data synthetic --train-images 99 \
      --test-images 20 --batch 2 --epochs 2 --momentum 0.9 --result kept $from >text
    cat text
    [ "$(ls kept$devices)" = $'checkpoint-00000098.safetensors\ncheckpoint-00000100.safetensors\nmodel_best.safetensors' ]
    python3 - "$from" <<'PYTHON'
import json, sys
whole, kept = json.load(open("auto")), json.load(open("kept"))
assert kept["parameters_sha256"] == whole["parameters_sha256"]
assert kept["graph"] or "--resume" in sys.argv[1]  # the two steps that are left are run one by one
PYTHON
  done
  python3 - <<PYTHON
import json
replayed, plain = json.load(open("auto")), json.load(open("off"))
assert replayed["graph"] and not plain["graph"]
assert replayed["parameters_sha256"] == plain["parameters_sha256"] == json.load(open("autohashes"))["parameters_sha256"]
assert len(replayed["train_loss"]) == len(plain["train_loss"]) == 40
assert all(abs(a - b) < 1e-6 * b for a, b in zip(replayed["train_loss"], plain["train_loss"]))
assert len(open("auto.times").readlines()) == len(open("off.times").readlines()) == 99
assert open("auto.hashes").read() == open("off.hashes").read()
# Numbers of 99 samples an epoch, 8 bytes each, and 20 losses, over 50 steps: each is copied once.
if $devices == 1:
    assert replayed["moved_bytes_per_step"][0] < 1.1 * (99 * 8 + 20 * 4) / 50, replayed["moved_bytes_per_step"]
PYTHON
done
# Collectives over NCCL among threads, and over the host's memory.
for collective in all_reduce all_gather broadcast reduce_scatter all_to_all; do
  DUET_SIM_DEVICES=2 DUET_NCCL_MODULE=$nccl "$duet" bench $collective --device cuda --workers thread --backend nccl,shm \
    -b 64 -e 4K -f 8 -n 2 -w 1 --dtype bf16 --json bench.json >text
  cat text
  expect "^# $collective among 2 ranks over nccl on cuda (simulated), algorithm library" text
  expect "^# $collective among 2 ranks over shm on cuda (simulated), algorithm library" text
  expect '^ *4096 *2048 *bf16 .* 0$' text
  expect '^# wrong elements: 0$' text
  expect '"device": "cuda (simulated)"' bench.json
done
# With ranks as processes, too; NCCL for another CUDA module is reported as skipped, and alone is an error.
"$duet" bench all_reduce --device cuda --backend nccl,shm -b 64 -e 64 -n 1 -w 0 >text
cat text
expect '^# all_reduce over nccl: skipped: DUET_CUDA_MODULE names another CUDA module' text
expect '^# all_reduce among 2 ranks over shm on cuda (simulated)' text
status=0
DUET_CUDA_MODULE=/nowhere/libduet_cuda.so "$duet" bench all_reduce --device cuda --backend nccl >text 2>&1 || status=$?
cat text
[ $status = 1 ] && [ "$(wc -l <text)" = 1 ]
expect '^# all_reduce over nccl: skipped: --device cuda: .*looked for /nowhere/libduet_cuda.so' text
# What duet info says of GPUs: compute capability, memory, driver, and direct copies between GPUs.
DUET_SIM_DEVICES=2 "$duet" info >text
expect '^ *cuda:0 (simulated GPU, sm_90, 4096 MiB, 4295 of 4295 MB free)' text
expect '^ *cuda:1 *to cuda:0 direct$' text
expect '^ *CUDA *13\.0 (driver 13\.0)$' text
DUET_SIM_DEVICES=2 DUET_SIM_PEER=0 "$duet" info >text
expect '^ *cuda:0 *to cuda:1 through the host$' text
# DistributedDataParallel over NCCL, of one rank: simulated NCCL joins no processes.
for graph in on off; do
  DUET_NCCL_MODULE=$nccl "$duet" launch -n 1 -- "$duet" train --device cuda --model linear --mode ddp --backend nccl \
    --graph $graph --data synthetic --train-images 49 --test-images 20 --batch 2 --epochs 2 --result ddp.$graph >text
  cat text
done
expect 'no CUDA graphs: --graph off$' text
python3 - <<'PYTHON'
import json
replayed, plain = json.load(open("ddp.on")), json.load(open("ddp.off"))
assert replayed["graph"] and not plain["graph"]
assert replayed["parameters_sha256"] == plain["parameters_sha256"]
PYTHON
refused() {
  status=0
  "$duet" train --quiet --data synthetic --graph on "${@:2}" >text 2>&1 || status=$?
  cat text
  [ $status = 2 ] && expect "^duet: --graph on: $1" text
}
refused 'CPU devices have no graphs'
DUET_SIM_DEVICES=2 DUET_SIM_PEER=0 refused "what cuda:0 copies to cuda:1 goes through the host's memory" --device cuda --mode dp --devices 2
refused "ranks over gloo add gradients up in the host's memory" --device cuda --mode ddp --devices 2 --backend gloo
refused '--compare-every reads all parameters back' --device cuda --mode ddp --compare-every 10
refused 'with --compat torch the host draws dropout' --device cuda --compat torch
# Where there is no such GPU: one line, and exit status 1.
status=0
DUET_CUDA_MODULE=/nowhere/libduet_cuda.so "$duet" train --device cuda >text 2>&1 || status=$?
cat text
[ $status = 1 ] && [ "$(wc -l <text)" = 1 ]
expect '^duet: --device cuda: .*was not built or is not installed; looked for /nowhere/libduet_cuda.so' text
# Ranks that could not be connected are not started.
status=0
DUET_CUDA_MODULE=/nowhere/libduet_cuda.so "$duet" train --device cuda --mode ddp --devices 2 --backend nccl >text 2>&1 || status=$?
cat text
[ $status = 2 ] && [ "$(wc -l <text)" = 1 ]
expect '^duet: --backend nccl cannot be used: .*looked for /nowhere/libduet_cuda.so' text
