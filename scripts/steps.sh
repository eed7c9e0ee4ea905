#!/usr/bin/env bash
# Runs steps of the Makefile one after the other and stops at the first that fails. At the end a
# table says how long each step took, in minutes and in CPU seconds of all cores together.
#
#   scripts/steps.sh STEP...
set -uo pipefail
cd "$(dirname "$0")/.."
timing=$(mktemp)
trap 'rm -f "$timing"' EXIT
TIMEFORMAT='%R %U %S'
rows=()
status=0
for step in "$@"; do
  # What the step itself says goes past the file that takes the timing.
  { time "${MAKE:-make}" --no-print-directory "$step" 2>&3; } 3>&2 2>"$timing"
  status=$?
  read -r real user system <<<"$(tail -1 "$timing")"
  rows+=("$step $real $user $system")
  [[ $status -eq 0 ]] || break
done
printf '%s\n' "${rows[@]}" | awk '
  BEGIN { printf "\n%-14s %8s %12s\n", "step", "minutes", "CPU seconds" }
  { printf "%-14s %8.1f %12.0f\n", $1, $2 / 60, $3 + $4; real += $2; cpu += $3 + $4 }
  END { printf "%-14s %8.1f %12.0f\n", "together", real / 60, cpu }'
[[ $status -eq 0 ]] || echo "failed: make $step"
exit $status
