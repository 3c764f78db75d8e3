#!/usr/bin/env bash
# Puts a CUDA toolkit, cuDNN and NCCL from PyPI's wheels into a Python environment, for a machine that has an NVIDIA
# driver and nothing else. Needs no root. Does nothing, in a second, when everything is there.
#
#   tools/cuda_from_wheels.sh [FOLDER]    default: $DUET_CUDA_ENV, else ~/.cache/duet/cuda, where the build looks by itself
#
# About 1.5 GB are fetched and 2.4 GB are written; removing the folder undoes all of it.
set -euo pipefail
case "${1:-}" in -*) sed -n '2,7p' "$0" >&2; exit 2 ;; esac
tools=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${DUET_CUDA_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/duet/cuda}}

if [ -d "$folder" ] && "$tools/find_cuda.py" "$folder" >/dev/null 2>&1; then
  echo "cuda_from_wheels: everything is in $folder"
  exit 0
fi
# One major version, so that a driver that suits one of them suits all. cublas brings nvrtc, which cuDNN needs, too.
wheels=('nvidia-cuda-nvcc>=13,<14' 'nvidia-cuda-crt>=13,<14' 'nvidia-nvvm>=13,<14' 'nvidia-cuda-cccl>=13,<14'
  'nvidia-cuda-runtime>=13,<14' 'nvidia-cublas>=13,<14' 'nvidia-cudnn-cu13>=9' 'nvidia-nccl-cu13>=2.28')
echo "cuda_from_wheels: fetching about 1.5 GB into $folder"
mkdir -p "$(dirname "$folder")"
[ -x "$folder/bin/python3" ] || python3 -m venv "$folder"
"$folder/bin/python3" -m pip install --quiet --disable-pip-version-check --no-compile --no-cache-dir --retries 1 --timeout 20 "${wheels[@]}"
"$tools/find_cuda.py" "$folder" >/dev/null || { echo "cuda_from_wheels: $folder has no usable toolkit" >&2; exit 1; }
echo "cuda_from_wheels: done, $(du -sm "$folder" | cut -f1) MB"
