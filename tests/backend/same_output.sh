#!/bin/sh
# same_output.sh PROGRAM ARGUMENT...: runs PROGRAM once with each argument; all must print the same line, but those that
# exit with 77.
program=$1
shift
for argument in "$@"; do
  line=$("$program" "$argument") && status=0 || status=$?
  echo "$argument: $line"
  [ "$status" = 77 ] && continue
  [ "$status" = 0 ] || exit 1
  [ "${first=$line}" = "$line" ] || exit 1
done
