#!/usr/bin/env bash
# Installs what is missing, builds duet, and trains the same network alone, by hand-written averaging, by DataParallel and
# by DistributedDataParallel on 1, 2, 4 and 8 devices, as far as there are cores: one epoch each. Prints a table and where
# the report lies.
#
#   tools/demo.sh [OPTIONS of duet compare]      e.g. tools/demo.sh --data ~/mnist --lr 0.05
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-release
tools/setup.sh
if [ ! -f "$build/build.ninja" ]; then
  # Several sources at once compile in half the time. Kernels are left out, and steps take as long.
  meson setup "$build" -Dbuildtype=release -Dtests=false -Dunity=on >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
# The program, and the modules for --backend gloo and mpi; `ninja -C build-release` builds the rest, such as the examples. All of it
# where GPUs or LibTorch are used.
targets=()
if [ ! -e /proc/driver/nvidia ] && [[ " $*" != *.pt* ]]; then
  targets=(cli/duet)
  for module in ddp/gloo/libduet_gloo.so ddp/mpi/libduet_mpi.so; do
    ! grep -q "^build $module:" "$build/build.ninja" || targets+=("$module")
  done
fi
if [ -t 1 ]; then
  ninja -C "$build" "${targets[@]}"
else
  echo "demo: building (log in $build/compile.log)"
  ninja -C "$build" "${targets[@]}" >"$build/compile.log" 2>&1 || { tail -n 40 "$build/compile.log" >&2; exit 1; }
fi

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
