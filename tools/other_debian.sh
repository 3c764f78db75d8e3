#!/usr/bin/env bash
# Runs a command in a fresh, minimal Debian of another release: as root, in a clean clone of HEAD, with the network.
#
#   tools/other_debian.sh SUITE COMMAND...         SUITE: bookworm (Debian 12) or trixie (Debian 13)
#   tools/other_debian.sh trixie tools/test.sh
#   tools/other_debian.sh --folder FOLDER ...      FOLDER is /folder there
#
# Needs root. Base system, packages and the command's compiler cache are kept in ~/.cache/duet/debian; the system itself
# is removed at the end, with every process in it. Exit status: the command's, or 77, with one line that says why, where
# no such system can be made (no root, no namespaces, no debootstrap, no mirror).
set -euo pipefail
folder=
[ "${1:-}" != --folder ] || { folder=$(realpath "$2"); shift 2; }
case "${1:-}" in bookworm | trixie) ;; *) sed -n '2,10p' "$0" >&2; exit 2 ;; esac
[ $# -ge 2 ] || { sed -n '2,10p' "$0" >&2; exit 2; }
suite=$1
shift
cannot() { echo "other_debian: $*" >&2; exit 77; }

[ "$(id -u)" = 0 ] || cannot 'needs root'
unshare --mount --pid --fork true 2>/dev/null || cannot 'may not make namespaces'
if ! command -v debootstrap >/dev/null; then
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap; } >/dev/null 2>&1 ||
    cannot 'debootstrap is not installed and cannot be'
fi

cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/duet/debian
mkdir -p "$cache/archives-$suite" "$cache/ccache-$suite"
root=$(mktemp -d "${TMPDIR:-/tmp}/$suite.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
if [ ! -s "$cache/$suite.tar" ]; then
  # The mirror of this machine is near, and may be the only one that can be reached.
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -vE '^ *#' |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1) || true
  debootstrap --variant=minbase "$suite" "$root" ${mirror:+"${mirror% }"} >"$cache/$suite.log" 2>&1 ||
    cannot "debootstrap fails: $(tail -n 1 "$cache/$suite.log")"
  tar -C "$root" -cf "$cache/$suite.tar.new" .
  mv "$cache/$suite.tar.new" "$cache/$suite.tar"
else
  tar -C "$root" -xf "$cache/$suite.tar"
fi
chmod 755 "$root"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
git -c safe.directory='*' clone -q --no-hardlinks . "$root/root/project"

# The name space of processes ends with its first one, and all others with it.
unshare --mount --pid --fork --kill-child bash -c '
  set -e
  root=$1 archives=$2 ccache=$3 folder=$4
  shift 4
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs tmpfs "$root/tmp"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root/dev/shm" "$root/dev/pts" "$root/ccache"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s /proc/self/fd/0 "$root/dev/stdin"
  ln -s /proc/self/fd/1 "$root/dev/stdout"
  ln -s /proc/self/fd/2 "$root/dev/stderr"
  mount --bind "$archives" "$root/var/cache/apt/archives"
  mount --bind "$ccache" "$root/ccache"
  [ -z "$folder" ] || { mkdir "$root/folder"; mount --bind "$folder" "$root/folder"; }
  mkdir -p "$root/var/cache/apt/archives/partial"
  exec chroot "$root" env -i HOME=/root USER=root TERM="${TERM:-dumb}" LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CCACHE_DIR=/ccache \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    bash -c '\''cd /root/project && exec "$@"'\'' other_debian "$@"
' other_debian "$root" "$cache/archives-$suite" "$cache/ccache-$suite" "$folder" "$@" </dev/null
