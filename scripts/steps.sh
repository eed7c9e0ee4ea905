#!/usr/bin/env bash
# Runs steps of the Makefile one after the other, all of them even when one fails. At the end a table
# says how long each step took, in minutes and in CPU seconds of all cores together; then which
# failed.
#
#   scripts/steps.sh STEP...
#   scripts/steps.sh STEP,STEP/STEP,STEP...     runs the steps before the slash while those behind it run. Those before
#                                               it get only the time of cores that the others leave, and what they print
#                                               follows when both sides have ended.
#   LIMIT_MINUTES=75 scripts/steps.sh STEP...   ends the step that runs after that many minutes, and says which it was:
#                                               a build server that ends a run keeps nothing of what it printed
set -uo pipefail
cd "$(dirname "$0")/.."
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
touch "$notes/rows" "$notes/failed"
TIMEFORMAT='%R %U %S'
limit=(env)
polite=()
sides=()
[[ -z ${LIMIT_MINUTES:-} ]] || over=$((SECONDS + LIMIT_MINUTES * 60))

# Ends what runs in this shell: the step of a side, or both sides.
end_all() {
  [[ -z ${group:-} ]] || kill -TERM -- "-$group"
  if [[ ${#sides[@]} -gt 0 ]]; then
    kill -TERM "${sides[@]}"
    wait "${sides[@]}"
    cat "$notes/output"
  fi
  exit 130
}

# Runs a step in a process group of its own, and ends what it leaves behind: a process of a test that failed may hold the
# output of this run open, and a build server then waits for it without end.
run_step() {
  set -m
  "${limit[@]}" "${polite[@]}" "${MAKE:-make}" --no-print-directory "$1" &
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

# Runs steps one after the other, in a shell of their own: a shell counts the CPU seconds of all processes that it
# waited for, and the other side's are not those of a step.
run_side() { # STEPS, with commas between them
  trap end_all INT TERM
  local timing step real user system steps
  timing=$(mktemp -p "$notes")
  IFS=, read -ra steps <<<"$1"
  for step in "${steps[@]}"; do
    # A step that has no time left gets a second, so that its name is among those that failed.
    [[ -z ${over:-} ]] || limit=(timeout --kill-after=20 $((over > SECONDS ? over - SECONDS : 1)))
    # What the step itself says goes past the file that takes the timing.
    { time run_step "$step" 2>&3; } 3>&2 2>"$timing" || echo "$step" >>"$notes/failed"
    read -r real user system <<<"$(tail -1 "$timing")"
    echo "$step $real $user $system" >>"$notes/rows"
  done
}

trap end_all INT TERM
for step in "$@"; do
  : >"$notes/output"
  sides=()
  if [[ $step == */* ]]; then
    (polite=(nice -n 19); run_side "${step%%/*}") >"$notes/output" 2>&1 &
    sides+=($!)
  fi
  (sides=(); run_side "${step#*/}") &
  sides+=($!)
  # A side that a signal ended, and not its steps, has failed.
  for side in "${sides[@]}"; do
    wait "$side" || echo "$step" >>"$notes/failed"
  done
  cat "$notes/output"
done
awk -v all="$SECONDS" '
  BEGIN { printf "\n%-14s %8s %12s\n", "step", "minutes", "CPU seconds" }
  { printf "%-14s %8.1f %12.0f\n", $1, $2 / 60, $3 + $4; cpu += $3 + $4 }
  END { printf "%-14s %8.1f %12.0f\n", "together", all / 60, cpu }' "$notes/rows"
[[ -s $notes/failed ]] || exit 0
sed 's/^/failed: make /' "$notes/failed"
exit 1
