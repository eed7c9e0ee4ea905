#!/usr/bin/env bash
# Runs steps of the Makefile one after the other, all of them even when one fails. At the end a table
# says how long each step took, in minutes and in CPU seconds of all cores together; then which
# failed.
#
#   scripts/steps.sh STEP...
#   LIMIT_MINUTES=75 scripts/steps.sh STEP...   ends the step that runs after that many minutes, and says which it was:
#                                               a build server that ends a run keeps nothing of what it printed
set -uo pipefail
cd "$(dirname "$0")/.."
timing=$(mktemp)
trap 'rm -f "$timing"' EXIT
TIMEFORMAT='%R %U %S'
rows=()
failed=()
# Runs a step in a process group of its own, and ends what it leaves behind: a process of a test that failed may hold the
# output of this run open, and a build server then waits for it without end.
run_step() {
  set -m
  "${limit[@]}" "${MAKE:-make}" --no-print-directory "$1" &
  group=$!
  set +m
  wait "$group"
  local code=$?
  if [[ -n ${over:-} && ($code -eq 124 || $code -eq 137) ]]; then
    echo "steps: make $1 was ended: $LIMIT_MINUTES minutes are over"
  fi
  local left
  if left=$(pgrep --list-full --pgroup "$group"); then
    printf 'steps: make %s left processes behind, which are ended:\n%s\n' "$1" "$left"
    kill -KILL -- "-$group" 2>/dev/null
  fi
  return "$code"
}
trap '[[ -z ${group:-} ]] || kill -INT -- "-$group"; exit 130' INT TERM

limit=(env)
[[ -z ${LIMIT_MINUTES:-} ]] || over=$((SECONDS + LIMIT_MINUTES * 60))
for step in "$@"; do
  # A step that has no time left gets a second, so that its name is among those that failed.
  [[ -z ${over:-} ]] || limit=(timeout --kill-after=20 $((over > SECONDS ? over - SECONDS : 1)))
  # What the step itself says goes past the file that takes the timing.
  { time run_step "$step" 2>&3; } 3>&2 2>"$timing" || failed+=("$step")
  read -r real user system <<<"$(tail -1 "$timing")"
  rows+=("$step $real $user $system")
done
printf '%s\n' "${rows[@]}" | awk '
  BEGIN { printf "\n%-14s %8s %12s\n", "step", "minutes", "CPU seconds" }
  { printf "%-14s %8.1f %12.0f\n", $1, $2 / 60, $3 + $4; real += $2; cpu += $3 + $4 }
  END { printf "%-14s %8.1f %12.0f\n", "together", real / 60, cpu }'
[[ ${#failed[@]} -eq 0 ]] && exit
printf 'failed: make %s\n' "${failed[@]}"
exit 1
