#!/usr/bin/env bash
# Makes the reference of duet's public headers with Doxygen, in BUILD/reference/html/index.html. A warning is an error.
#
#   tools/reference.sh [BUILD]       BUILD: build-release
#
# Exit status 77: there is no Doxygen.
set -euo pipefail
mkdir -p "${1:-build-release}"
build=$(cd "${1:-build-release}" && pwd)
cd "$(dirname "$0")/.."
command -v doxygen >/dev/null || { echo "skipped: doxygen is not installed"; exit 77; }
reference=$build/reference
rm -rf "$reference"
mkdir -p "$reference"
# Its links to pages and files lead to what is no part of the reference.
sed -E 's/(^|[^!])\[([^]]*)\]\((docs|examples|LICENSE)[^)]*\)/\1\2/g' README.md >"$reference/README.md"
{
  cat tools/Doxyfile
  sed -n "s/^project('duet'.* version: '\([^']*\)'.*/PROJECT_NUMBER = \1/p" meson.build
  echo "OUTPUT_DIRECTORY = \"$reference\""
  echo "USE_MDFILE_AS_MAINPAGE = \"$reference/README.md\""
  echo "INPUT = \"$reference/README.md\"" $(tools/public_headers.py)
} | doxygen -
echo "reference: $reference/html/index.html"
