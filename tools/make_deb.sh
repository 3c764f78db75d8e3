#!/usr/bin/env bash
# Builds the Debian packages duet, libduet0 and libduet-dev, and their source package, from a clean copy of HEAD, on
# Debian 12 or 13, and copies them into FOLDER.
#
#   tools/make_deb.sh FOLDER
#
# Installs git, dpkg-dev and what debian/control names in Build-Depends, where they are missing (apt; sudo if needed), and
# nothing else: the packages are installed by `apt install FOLDER/duet_*.deb FOLDER/libduet0_*.deb`. Where lintian is
# installed it looks at them, and its errors are this script's.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
install=(env DEBIAN_FRONTEND=noninteractive apt-get -y -qq --no-install-recommends -o Dpkg::Use-Pty=0)

if ! command -v git >/dev/null || ! dpkg-checkbuilddeps 2>/dev/null; then
  echo 'make_deb: installing git, dpkg-dev and the Build-Depends of debian/control'
  as_root apt-get update -qq
  as_root "${install[@]}" install git dpkg-dev >/dev/null
  as_root "${install[@]}" build-dep ./ >/dev/null
fi
version=$(dpkg-parsechangelog -S Version)
if ! grep -q "^project('duet', .*version: '$version'" meson.build; then
  echo "make_deb: debian/changelog has version $version, expected that of meson.build" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/duet-$version"
git -c safe.directory='*' archive HEAD | tar -x -C "$work/duet-$version"
# Symbols for debuggers would double the time; dpkg-buildpackage by itself makes packages of them.
tools/build.py make_deb "$folder/build.log" env -C "$work/duet-$version" DEB_BUILD_OPTIONS="noautodbgsym parallel=$(nproc)" \
  DEB_CXXFLAGS_STRIP=-g dpkg-buildpackage -us -uc
cp "$work"/duet_* "$work"/libduet*.deb "$folder/"
! command -v lintian >/dev/null || lintian --fail-on error "$folder/duet_${version}_$(dpkg --print-architecture).changes"
du -h "$folder"/*.deb
