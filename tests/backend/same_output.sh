#!/bin/sh
# same_output.sh PROGRAM ARGUMENT...: runs PROGRAM once with each argument; all must print the same line.
program=$1
shift
for argument in "$@"; do
  line=$("$program" "$argument") || { echo "$program $argument failed: $line"; exit 1; }
  echo "$argument: $line"
  [ "${first=$line}" = "$line" ] || exit 1
done
