#!/usr/bin/env bash
# Installs what is missing, builds duet and runs its tests. The last line reads "N passed, N failed"; the lines before it
# name what was skipped and why, and what was left out.
#
#   tools/test.sh                                       the tests of the library and the program in ten minutes, in build-release
#   tools/test.sh --all                                 all tests, also of failures, networks, simulated GPUs, LibTorch, whole programs
#   tools/test.sh --suite lib --suite ddp               only these suites
#   tools/test.sh --no-suite elastic                    without this one
#   tools/test.sh --build build-asan -Db_sanitize=...   another build folder, with options for `meson setup`
#
# Long tests draw some of their cases: DUET_TEST_SEED=N draws others, DUET_TEST_WHOLE=1 runs them all. Tests look for the
# real MNIST in $DUET_DATA or ../shared/data and are skipped without it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests have time to spare: a limit ends what hangs, and must not end what a busy machine runs slowly.
build=build-release options=() suites=() more=() slower=4
left_out=(simulated cuda cuda_build ptx torch elastic network end_to_end examples failing_calls locale install)
while [ $# -gt 0 ]; do
  case "$1" in
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --build) build=$2; shift 2 ;;
    --all) left_out=(); shift ;;
    --suite) [ ${#suites[@]} != 0 ] || left_out=(); suites+=(--suite "$2"); shift 2 ;;
    --no-suite) more+=("$2"); shift 2 ;;
    # Clang needs lundef off; -O1 and -g1 build in a quarter of the time and keep stacks readable; the tests run slower.
    -Db_sanitize=*) slower=10 options+=("$1" -Dbuildtype=debugoptimized -Db_lundef=false -Doptimization=1 -Dcpp_args=-g1); shift ;;
    -D*) options+=("$1"); shift ;;
    *) sed -n '2,14p' "$0" >&2; exit 2 ;;
  esac
done
left_out+=("${more[@]}")
for suite in "${left_out[@]}"; do suites+=(--no-suite "$suite"); done

tools/setup.sh
if [ -f "$build/build.ninja" ]; then
  # tools/demo.sh sets a build up without tests.
  meson configure "$build" -Dtests=true "${options[@]}" >/dev/null
else
  meson setup "$build" "${options[@]}" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
  mv "$build.log" "$build/setup.log"
fi

# A report of undefined behaviour ends the program, as those of the other sanitizers do.
export UBSAN_OPTIONS=${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}
# A test asks for more memory than there is, and expects an exception. The thread sanitizer sees only half of what Gloo
# and oneDNN do, as they are not instrumented: what they call is left out, all code of duet stays in.
export ASAN_OPTIONS=${ASAN_OPTIONS-allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS-allocator_may_return_null=1:ignore_noninstrumented_modules=1}
status=0
rm -f "$build/meson-logs/testlog.json"
tools/build.py test "$build/test.log" meson test -C "$build" --num-processes $(($(nproc) + 3)) --timeout-multiplier "$slower" "${suites[@]}" || status=$?
[ -f "$build/meson-logs/testlog.json" ] || exit 1
[ ${#left_out[@]} = 0 ] || echo "left out: the suites ${left_out[*]}; tools/test.sh --all runs everything"
tools/count_tests.py "$build/meson-logs/testlog.json" ${DUET_TEST_TIMES:+"$DUET_TEST_TIMES" "$build"} || status=1
exit "$status"
