#!/usr/bin/env bash
# Installs what duet needs on Debian 12 or 13. Does nothing, in under a second, when everything is there.
#
#   tools/setup.sh          what a build and its tests need
#   tools/setup.sh --demo   what tools/demo.sh builds needs: no Catch2, Gloo or MPI
#   tools/setup.sh --ci     clang, its sanitizers and clang-format, CMake, zsh, Chromium, Doxygen, and a Slurm to run a test under, too
#   tools/setup.sh --torch  LibTorch and PyTorch, too, where a mirror gives them within two minutes; else exit status 1
#
# Uses sudo only when something is missing and you are not root. On a machine with an NVIDIA driver and no CUDA toolkit,
# tools/cuda_from_wheels.sh fetches one into ~/.cache/duet.
set -euo pipefail
cd "$(dirname "$0")/.."

needed=(g++ meson ninja-build pkg-config python3 python3-venv git ca-certificates
  libdnnl-dev             # CPU kernels
  libboost-dev            # Asio, for sockets
  nlohmann-json3-dev libcli11-dev zlib1g-dev libcurl4-openssl-dev
  catch2)
optional=(libgloo-dev     # DDP between hosts; without it the Gloo module is not built
  libopenmpi-dev          # DDP over MPI; without it the MPI module is not built
  libjpeg62-turbo-dev     # with libpng-dev: images from folders
  libpng-dev
  libjs-chart.js          # the pictures of reports
  openmpi-bin)            # mpirun, under which tests run
case "${1:-}" in
  --demo)
    drop=' git catch2 libgloo-dev libopenmpi-dev openmpi-bin '
    for list in needed optional; do
      declare -n packages=$list
      for i in "${!packages[@]}"; do [[ $drop != *" ${packages[i]} "* ]] || unset "packages[i]"; done
    done ;;
  --ci) optional+=(clang libclang-rt-dev clang-format cmake zsh slurm-client slurmctld slurmd munge chromium doxygen) ;;
  --torch | '') ;;
  *) sed -n '2,10p' "$0" >&2; exit 2 ;;
esac

# Where there is no apt: prints the packages whose programs and headers are missing.
missing_files() {
  local program header
  for program in g++ meson ninja:ninja-build pkg-config python3 git; do
    command -v "${program%:*}" >/dev/null || echo "${program#*:}"
  done
  ! command -v g++ >/dev/null || for header in dnnl.hpp:libdnnl-dev boost/asio.hpp:libboost-dev nlohmann/json.hpp:nlohmann-json3-dev \
    CLI/CLI.hpp:libcli11-dev zlib.h:zlib1g-dev curl/curl.h:libcurl4-openssl-dev catch2/catch.hpp:catch2; do
    # Catch2 3 has no catch.hpp.
    printf '#if !__has_include(<%s>) && !(__has_include(<catch2/catch_all.hpp>) && 0%s)\nlacks %s\n#endif\n' "${header%:*}" \
      "$([ "${header#*:}" != catch2 ] || echo 1)" "${header#*:}"
  done | g++ -std=c++20 -E -P -x c++ - | awk '$1 == "lacks" {print $2}'
}

apt=1
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || apt=
if [ -z "$apt" ]; then
  mapfile -t absent < <(missing_files)
  [ ${#absent[@]} = 0 ] || {
    echo "setup: this system has no apt, and it lacks what Debian's packages ${absent[*]} hold: install their equivalents" >&2
    exit 1
  }
fi

# Prints those of the given packages that are not installed.
missing() {
  local package
  for package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "setup: packages are missing (${absent[*]}) and there is no sudo; run this script as root" >&2; exit 1
  fi
}

# Recommended packages would be gigabytes.
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0)

# Runs a command of apt, and prints how long it has been at work every 9 s: python3, and so tools/build.py, may be missing.
patiently() {
  local start=$SECONDS clock status=0
  while sleep 9 >/dev/null 2>&1; do echo "setup: installing packages, $((SECONDS - start)) s"; done &
  clock=$!
  "$@" >/dev/null || status=$?
  kill "$clock"
  wait "$clock" 2>/dev/null || true
  return "$status"
}

[ -z "$apt" ] || mapfile -t absent < <(missing "${needed[@]}" "${optional[@]}")
if [ ${#absent[@]} -gt 0 ]; then
  echo "setup: installing ${absent[*]}"
  # A stale package list names files that the mirror no longer has.
  patiently as_root apt-get update -qq
  if ! patiently as_root "${install[@]}" "${absent[@]}"; then
    mapfile -t absent < <(missing "${needed[@]}")
    [ ${#absent[@]} = 0 ] || patiently as_root "${install[@]}" "${absent[@]}"
    mapfile -t absent < <(missing "${optional[@]}")
    [ ${#absent[@]} = 0 ] || echo "setup: optional packages that could not be installed: ${absent[*]}" >&2
  fi
  touch meson_options.txt  # build folders that were set up without them look again
  mapfile -t absent < <(missing "${needed[@]}")
  [ ${#absent[@]} = 0 ] || { echo "setup: still missing after the installation: ${absent[*]}" >&2; exit 1; }
fi
# CUDA is never installed from packages: where there is an NVIDIA driver and no toolkit, wheels bring it, without root.
if toolkit=$(tools/find_cuda.py 2>/dev/null); then
  echo "setup: CUDA $(awk -F '\t' '$1 == "version" {print $2}' <<<"$toolkit") in $(awk -F '\t' '$1 == "root" {print $2}' <<<"$toolkit")"
elif [ "${DUET_CUDA:-auto}" != off ] && tools/find_cuda.py --driver; then
  echo "setup: an NVIDIA driver but no CUDA toolkit: fetching one (DUET_CUDA=off: build without)"
  # Build folders that were set up without it look again.
  (tools/cuda_from_wheels.sh && touch meson_options.txt) || echo "setup: no CUDA toolkit could be fetched; building for CPU only" >&2
else
  echo "setup: no CUDA toolkit found (optional)"
fi
if [ "${1:-}" = --torch ]; then
  found=$(tools/find_torch.py 2>&1) && there=1 || there=
  absent=()
  # Not where there is another LibTorch than Debian's.
  if [ -n "$apt" ] && { [ -z "$there" ] || grep -qP '^include\t/usr/include$' <<<"$found"; }; then
    mapfile -t absent < <(missing libtorch-dev python3-torch)
  fi
  # The limit is for the mirror alone: it would leave packages behind that are half installed.
  if [ ${#absent[@]} -gt 0 ] && as_root timeout 60 apt-get update -qq &&
    patiently as_root timeout 120 "${install[@]}" --download-only "${absent[@]}" && patiently as_root "${install[@]}" "${absent[@]}"; then
    touch meson_options.txt  # build folders that were set up without it look again
  elif [ -z "$there" ]; then
    echo "setup: LibTorch could not be fetched in two minutes, or not be installed, and none was found: $found" >&2
    exit 1
  elif [ ${#absent[@]} -gt 0 ]; then
    echo "setup: optional packages that could not be installed: ${absent[*]}" >&2
  fi
fi
echo "setup: everything needed is installed"
