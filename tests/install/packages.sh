#!/usr/bin/env bash
# Builds the Debian packages in a fresh Debian, runs lintian there, and tries the packages in another one.
#
#   tests/install/packages.sh SUITE FOLDER    SUITE: bookworm or trixie; FOLDER gets the packages. Needs root and a mirror
#
# The last line reads "N passed, N failed".
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ "$1" != --there ]; then
  mkdir -p "$2"
  # shellcheck disable=SC2016
  "$root/tools/other_debian.sh" --folder "$2" "$1" bash -c '
    set -e
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends lintian; } >/dev/null
    SECONDS=0
    tools/make_deb.sh /folder
    echo "built in $SECONDS s, with the installation of what the build needs"'
  exec "$root/tools/other_debian.sh" --folder "$2" "$1" tests/install/packages.sh --there
fi

export DEBIAN_FRONTEND=noninteractive
installed() {  # installed PACKAGE...
  apt-get install -y -qq "$@" >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
}
apt-get update -qq
SECONDS=0
installed /folder/duet_*.deb /folder/libduet0_*.deb
echo "installed in $SECONDS s"
! command -v cc c++ gcc g++ meson || { echo 'there is a compiler'; exit 1; }
SECONDS=0
duet compare --out /tmp/out
echo "the first verdict took $SECONDS s"

installed --no-install-recommends g++ meson ninja-build pkgconf cmake python3 libcli11-dev /folder/libduet-dev_*.deb
exec tests/install/run.sh --packages
