#!/usr/bin/env bash
# Installs a build folder, uses it from outside of duet's tree, and uninstalls it again.
#
#   tests/install/run.sh BUILD            into an empty folder
#   tests/install/run.sh BUILD --system   into /usr/local with README's commands, as root on a machine to be thrown away
#
# The last line reads "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd) || exit 1
system=${2:-}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
passed=0 failed=0
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
  if [ "$system" = --system ]; then
    cd "$root"
    eval "$(readme_block 1 | sed "s|build-release|$build|")"
  else
    meson install -C "$build" --no-rebuild --destdir "$tree/root"
  fi
}
everything() { find "$top" ! -type d -o -empty | sort; }

top=$tree/root
[ "$system" = --system ] && top=/usr/local
mkdir -p "$top"
before=$(everything)
check 'meson install' install_it
if [ "$system" != --system ]; then
  pc=$(find "$tree/root" -name duet.pc)
  export PKG_CONFIG_PATH=${pc%/*}
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir duet)
  export LD_LIBRARY_PATH
fi
prefix=$(pkg-config --variable=prefix duet)
export TMPDIR=$tree

# An installed program finds its library by itself.
installed_program() { env -u LD_LIBRARY_PATH "$prefix/bin/duet" info; }
check 'duet info' installed_program

for file in bin/duet share/man/man1/duet.1 share/bash-completion/completions/duet share/zsh/site-functions/_duet \
  share/doc/duet/LICENSE share/doc/duet/README.md share/doc/duet/examples/train_ddp.cpp include/duet/duet.h; do
  check "$file" test -s "$prefix/$file"
done
documentation() { diff <(cd "$root/docs" && ls -I meson.build) <(cd "$prefix/share/doc/duet/docs" && ls); }
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
readme_project() {
  mkdir "$tree/mine"
  readme_block 2 >"$tree/mine/meson.build"
  { readme_block 3; echo 'int main() { return static_cast<int>(duet::zeros({2}).count()) - 2; }'; } >"$tree/mine/main.cpp"
  meson setup "$tree/mine/build" "$tree/mine"
  meson compile -C "$tree/mine/build"
  "$tree/mine/build/mine"
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
! pkg-config --exists duet-torch || check 'an example with LibTorch' with_libtorch
check 'a Meson project with a lib/tensor.h of its own' with_meson
check 'the same with pkg-config alone' with_pkg_config
check "README's project" readme_project
check 'the installed examples' examples
check 'a network of the installed examples' own_network_module

uninstall_it() {
  ninja -C "$build" uninstall
  local after
  after=$(everything)
  diff <(echo "$before") <(echo "$after")
}
check 'ninja uninstall removes everything' uninstall_it
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
