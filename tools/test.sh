#!/usr/bin/env bash
# Installs what is missing, builds duet and runs all its tests. The last line reads "N passed, N failed"; the line before
# it names what was skipped, and why.
#
#   tools/test.sh                                       all tests, in build-test
#   tools/test.sh --build build-asan -Db_sanitize=...   another build folder, with options for `meson setup`
#   tools/test.sh --suite lib --suite ddp               some suites only, and what they need
#   tools/test.sh --whole --suite lib                   everything is built, also for other suites
#   tools/test.sh -Dsimulated_orders=few                work on simulated GPUs in 3 orders, as CI has it; all: in 20,
#                                                       half an hour
#
# The real MNIST is looked for in $DUET_DATA, or ../shared/data; tests that need it are skipped without it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests have time to spare: a limit ends what hangs, and must not end what a busy machine runs slowly.
build=build-test options=() suites=() whole= slower=4
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2; shift 2 ;;
    --suite) suites+=(--suite "$2"); shift 2 ;;
    --whole) whole=1; shift ;;
    # Clang needs lundef off; -O1 and -g1 build in a quarter of the time and keep stacks readable; the tests run slower.
    -Db_sanitize=*) slower=10 options+=("$1" -Db_lundef=false -Doptimization=1 -Dcpp_args=-g1); shift ;;
    -D*) options+=("$1"); shift ;;
    *) sed -n '2,12p' "$0" >&2; exit 2 ;;
  esac
done

tools/setup.sh >&2
if [ -f "$build/build.ninja" ]; then
  [ ${#options[@]} = 0 ] || meson configure "$build" "${options[@]}" >/dev/null
else
  meson setup "$build" -Dbuildtype=debugoptimized "${options[@]}" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi
if [ ${#suites[@]} = 0 ] || [ -n "$whole" ]; then
  if [ -t 1 ]; then
    ninja -k 0 -C "$build" || exit 1
  else
    echo "test: building (log in $build/compile.log)"
    ninja -k 0 -C "$build" >"$build/compile.log" 2>&1 || { grep -E 'error|FAILED|warning' -A 12 "$build/compile.log" >&2; exit 1; }
  fi
  suites+=(--no-rebuild)
fi  # else Meson builds what those suites need

# A report of undefined behaviour ends the program, as those of the other sanitizers do.
export UBSAN_OPTIONS=${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}
# A test asks for more memory than there is, and expects an exception. The thread sanitizer sees only half of what Gloo
# and oneDNN do, as they are not instrumented: what they call is left out, all code of duet stays in.
export ASAN_OPTIONS=${ASAN_OPTIONS-allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS-allocator_may_return_null=1:ignore_noninstrumented_modules=1}
status=0
meson test -C "$build" --print-errorlogs --timeout-multiplier "$slower" "${suites[@]}" || status=$?
tools/count_tests.py "$build/meson-logs/testlog.json" || status=1
exit "$status"
