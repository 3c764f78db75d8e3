#!/usr/bin/env bash
# Installs what is missing, builds duet, and trains the same network alone, by hand-written averaging, by DataParallel and
# by DistributedDataParallel on 1, 2, 4 and 8 devices, up to the number of cores. Prints a table and the path of the report.
#
#   tools/demo.sh                                a first look: 12,800 images and 20 s of measurements
#   tools/demo.sh OPTIONS of duet compare        e.g. tools/demo.sh --data ~/mnist --lr 0.05, which trains a whole epoch
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-release
if [ $# = 0 ]; then
  set -- --train-images 12800 --time-budget 20
  tools/setup.sh --demo
else
  tools/setup.sh
fi
if [ ! -f "$build/build.ninja" ]; then
  meson setup "$build" -Dtests=false >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
# Only the program, unless GPUs, LibTorch, Gloo or MPI are used. `ninja -C build-release` builds the rest, such as the examples.
targets=(cli/duet)
[ ! -e /proc/driver/nvidia ] && [[ " $*" != *.pt* && " $*" != *gloo* && " $*" != *mpi* ]] || targets=()
tools/build.py demo "$build/compile.log" ninja -C "$build" "${targets[@]}"

out=out
for ((i = 1; i <= $#; ++i)); do
  case "${!i}" in
    --out) next=$((i + 1)) out=${!next-} ;;
    --out=*) out=${!i#--out=} ;;
  esac
done
started=$(mktemp)
trap 'rm -f "$started"' EXIT
status=0
"$build/cli/duet" compare "$@" || status=$?
# An older report is another run's.
[ ! "$out/index.html" -nt "$started" ] || echo "demo: the report is $(realpath "$out")/index.html"
exit "$status"
