#!/bin/sh
# Usage: expect_failure.sh TEXT PROGRAM: succeeds when PROGRAM fails and says TEXT.
output=$("$2" 2>&1) && { echo "$2 succeeded: the planted bug was not caught"; exit 1; }
case "$output" in *"$1"*) exit 0 ;; esac
printf '%s\nfailed, but without the words "%s"\n' "$output" "$1"
exit 1
