#!/usr/bin/env bash
# Installs what is missing, builds duet, and trains the same network alone, by hand-written averaging, by DataParallel and
# by DistributedDataParallel on 1, 2 and 4 devices: one epoch each. Prints a table and where the report lies.
#
#   tools/demo.sh [OPTIONS of duet compare]      e.g. tools/demo.sh --data ~/mnist --lr 0.05
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-release
tools/setup.sh
if [ ! -f "$build/build.ninja" ]; then
  meson setup "$build" -Dbuildtype=release -Dtests=false >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
echo "demo: building (log in $build/compile.log)"
ninja -C "$build" >"$build/compile.log" 2>&1 || { tail -n 40 "$build/compile.log" >&2; exit 1; }

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
