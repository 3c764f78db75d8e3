#!/usr/bin/env bash
# Usage: tests/install/run.sh BUILD: installs the build folder into an empty tree, and builds and runs a project outside
# of duet's tree against it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

meson install -C "$build" --no-rebuild --destdir "$tree/root" >"$tree/log" || { cat "$tree/log" >&2; exit 1; }
pc=$(find "$tree/root" -name duet.pc)
prefix=$(PKG_CONFIG_PATH=${pc%/*} pkg-config --variable=prefix duet)
for header in $(cd "$here/../.." && tools/public_headers.py); do
  [ -f "$prefix/include/duet/$header" ] || { echo "install: $header is missing under $prefix/include/duet" >&2; exit 1; }
done

mkdir "$tree/outside"
cp "$here/meson.build" "$here/main.cpp" "$tree/outside/"
export PKG_CONFIG_PATH=${pc%/*}
meson setup "$tree/outside/build" "$tree/outside" >"$tree/log" || { cat "$tree/log" >&2; exit 1; }
ninja -C "$tree/outside/build" >"$tree/log" || { cat "$tree/log" >&2; exit 1; }
said=$(LD_LIBRARY_PATH=$(pkg-config --variable=libdir duet) TMPDIR=$tree "$tree/outside/build/outside")
echo "$said"
# The module must be found in the tree, not where it was built.
module=$(find "$tree/root" -name 'libduet_gloo.so')
[ -z "$module" ] || [[ $said = *'Gloo: yes' ]]
