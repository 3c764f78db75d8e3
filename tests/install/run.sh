#!/usr/bin/env bash
# Installs a build folder, uses it from outside of duet's tree, and uninstalls it again.
#
#   tests/install/run.sh BUILD            into an empty folder
#   tests/install/run.sh BUILD --system   into /usr/local with README's commands, as root on a machine to be thrown away
#   tests/install/run.sh --packages       uses what Debian's packages have installed: see packages.sh
#
# The last line reads "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
place=${2:-folder}
[ "$1" != --packages ] || place=$1
build=$([ "$place" = --packages ] || { cd "$1" && pwd; }) || exit 1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
passed=0 failed=0 skipped=
check() {  # check NAME COMMAND...
  if (set -e; "${@:2}") >"$tree/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "failed: $1"
    tail -n 20 "$tree/log"
  fi
}

# Prints the N-th block of README's section on use from another project.
readme_block() {
  awk -v n="$1" '/^## /{s = /^## Use it from/} s && /^```/{++fences; next} s && fences == 2 * n - 1' "$root/README.md"
}
sudo() { "$@"; }  # README's; here it is root already

install_it() {
  if [ "$place" = --system ]; then
    cd "$root"
    eval "$(readme_block 1 | sed "s|build-release|$build|")"
  else
    meson install -C "$build" --no-rebuild --destdir "$tree/root"
  fi
}
everything() { find "$top" ! -type d -o -empty | sort; }

top=$tree/root
[ "$place" = --system ] && top=/usr/local
mkdir -p "$top"
before=$(everything)
[ "$place" = --packages ] || check 'meson install' install_it
if [ "$place" = folder ]; then
  pc=$(find "$tree/root" -name duet.pc)
  export PKG_CONFIG_PATH=${pc%/*}
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir duet)
  export LD_LIBRARY_PATH
fi
prefix=$(realpath "$(pkg-config --variable=prefix duet)")
[ "$place" != folder ] || export CMAKE_PREFIX_PATH=$prefix
export TMPDIR=$tree CMAKE_GENERATOR=Ninja

# An installed program finds its library by itself.
installed_program() { env -u LD_LIBRARY_PATH "$prefix/bin/duet" info; }
check 'duet info' installed_program

files=(share/man/man1/duet.1 share/zsh/site-functions/_duet share/doc/duet/LICENSE)
[ "$place" != --packages ] || files=(share/man/man1/duet.1.gz share/zsh/vendor-completions/_duet share/doc/duet/copyright)
for file in "${files[@]}" bin/duet share/bash-completion/completions/duet share/doc/duet/README.md \
  share/doc/duet/examples/train_ddp.cpp include/duet/duet.h; do
  check "$file" test -s "$prefix/$file"
done
documentation() { diff <(cd "$root/docs" && find . -name '*.*' -not -name meson.build -type f | sort) <(cd "$prefix/share/doc/duet/docs" && find . -type f | sort); }
# With LibTorch those of torch/ are installed, too.
all_public() { "$root/tools/public_headers.py"; ! pkg-config --exists duet-torch || "$root/tools/public_headers.py" --torch; }
only_public() { diff <(cd "$prefix/include/duet" && find . -type f | cut -c 3- | sort) <(all_public | sort -u); }
check 'the pages of the documentation' documentation
check 'the public headers and no others' only_public

# Headers are clean under the warnings of a strict project, too. -I: what users see is not a system header.
flags="-std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I$prefix/include"
read -ra compile <<<"${CXX:-g++} $flags -fsyntax-only -x c++"
export compile_words="${compile[*]}"
alone() {  # every header by itself, on all cores
  cd "$prefix/include"
  find duet -name '*.h' ! -path 'duet/torch/*' -print0 |
    xargs -0 -P "$(nproc)" -I {} sh -c 'echo "#include <{}>" | $compile_words - || { echo "{} alone"; exit 255; }'
}
together() { (cd "$prefix/include" && find duet -name '*.h' ! -path 'duet/torch/*' | sort -r | sed 's/.*/#include <&>/') | "${compile[@]}" -; }
too_old() {
  local said
  said=$(echo '#include <duet/duet.h>' | ${CXX:-g++} -std=c++17 "-I$prefix/include" -fsyntax-only -x c++ - 2>&1) && return 1
  echo "$said"
  [ "$(grep -c 'error' <<<"$said")" = "$(grep -c 'duet needs C++20: compile with -std=c++20 or newer' <<<"$said")" ]
}
check 'each header alone' alone
check 'all headers together' together
check 'a plain sentence below C++20' too_old

with_meson() {
  cp -r "$here/outside" "$tree/outside"
  meson setup "$tree/outside/build" "$tree/outside"
  ninja -C "$tree/outside/build"
  "$tree/outside/build/outside" | tee "$tree/said"
  # Modules are found next to the installed library.
  [ -z "$(find "$prefix/lib" "$prefix/lib64" -name libduet_gloo.so 2>/dev/null)" ] || grep -q 'Gloo: yes' "$tree/said"
}
with_pkg_config() {
  cd "$here/outside"
  # shellcheck disable=SC2046
  ${CXX:-g++} -std=c++20 -I. main.cpp -o "$tree/plain" $(pkg-config --cflags --libs duet)
  "$tree/plain"
}
readme_project() {  # readme_project FILE N: README's program, by FILE, which is README's block N
  mkdir "$tree/by-$1"
  cd "$tree/by-$1"
  readme_block "$2" >"$1"
  { readme_block 4; echo 'int main() { return static_cast<int>(duet::zeros({2}).count()) - 2; }'; } >main.cpp
  case "$1" in
    meson.build) meson setup build; meson compile -C build ;;
    *) cmake -S . -B build; cmake --build build ;;
  esac
  build/mine
}
with_cmake() {
  cmake -S "$here/outside" -B "$tree/outside-cmake"
  cmake --build "$tree/outside-cmake"
  "$tree/outside-cmake/outside"
}
# Without duet's headers of torch/, or without LibTorch, the error says which.
cmake_component() {  # cmake_component NAME REASON
  mkdir "$tree/component-$1"
  cd "$tree/component-$1"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.18)' 'project(a CXX)' "find_package(duet REQUIRED COMPONENTS $1)" >CMakeLists.txt
  ! cmake -DCMAKE_DISABLE_FIND_PACKAGE_Torch=1 -B build . 2>said || return
  cat said
  tr -s '\n ' ' ' <said | grep -q "$2"
}
examples() {
  cd "$prefix/share/doc/duet/examples"
  local flags example
  flags=$(pkg-config --cflags --libs duet)
  export flags
  find . -name '*.cpp' ! -path './torch/*' ! -name own_network_module.cpp -printf '%P\0' | xargs -0 -P "$(nproc)" -I {} sh -c '${CXX:-g++} -std=c++20 {} -o "$TMPDIR/{}.out" $flags || exit 255'
  for example in "$TMPDIR"/*.cpp.out; do "$example" --help; done
  "$TMPDIR/partition.cpp.out" | diff - "$root/tests/examples/golden/partition.txt"
}
own_network_module() {
  cd "$tree"
  # shellcheck disable=SC2046
  ${CXX:-g++} -std=c++20 -O2 -shared -fPIC "$prefix/share/doc/duet/examples/own_network_module.cpp" -o own_network.so \
    $(pkg-config --cflags --libs duet)
  "$prefix/bin/duet" train --model ./own_network.so --train-images 8 --test-images 4 --batch 4 --epochs 1
}
with_libtorch() {
  # shellcheck disable=SC2046
  ${CXX:-g++} $flags "$root/examples/torch/train_ddp.cpp" -o "$tree/train_ddp" $(pkg-config --cflags --libs duet-torch)
  "$prefix/bin/duet" launch -n 2 "$tree/train_ddp" synthetic 100 | grep 'test loss'
}
with_libtorch_by_cmake() {
  cmake -S "$here/outside/torch" -B "$tree/torch-cmake" "-DEXAMPLE=$root/examples/torch/train_ddp.cpp"
  cmake --build "$tree/torch-cmake"
  "$prefix/bin/duet" launch -n 2 "$tree/torch-cmake/train_ddp" synthetic 100 | grep 'test loss'
}
! pkg-config --exists duet-torch || check 'an example with LibTorch' with_libtorch
check 'a Meson project with a lib/tensor.h of its own' with_meson
check 'the same with pkg-config alone' with_pkg_config
check "README's project" readme_project meson.build 2
if command -v cmake >/dev/null; then
  check "README's project with CMake" readme_project CMakeLists.txt 3
  check 'the same project with CMake, and what find_package refuses' with_cmake
  check 'a component that duet does not have' cmake_component nonsense 'duet has no component nonsense, expected torch'
  if pkg-config --exists duet-torch; then
    check 'no LibTorch for the component torch' cmake_component torch "LibTorch's CMake package Torch was not found"
    check 'an example with LibTorch, by CMake' with_libtorch_by_cmake
  else
    check 'a duet without LibTorch' cmake_component torch 'this duet was built without LibTorch'
  fi
else
  skipped='1 skipped: projects with CMake: cmake is not installed (1)'
fi
check 'the installed examples' examples
check 'a network of the installed examples' own_network_module

uninstall_it() {
  ninja -C "$build" uninstall
  local after
  after=$(everything)
  diff <(echo "$before") <(echo "$after")
}
[ "$place" = --packages ] || check 'ninja uninstall removes everything' uninstall_it
[ -z "$skipped" ] || echo "$skipped"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
