#!/usr/bin/env bash
# Runs the tests of the workspace, and names what a reader of ten thousand lines would not find: the programs of tests
# that took longest, the tests that ran for more than a minute, and of the tests that failed those that pass when they
# run once more and alone. A flaky test is a failed test: it is named so that its mend begins at the test, and not so
# that it may stay.
#
#   scripts/tests.sh [ARGUMENT...]      the arguments go to each program of tests, such as `--skip NAME`
set -uo pipefail
cd "$(dirname "$0")/.."
# Beyond so many failures the cause is no chance, and a second run costs time alone.
rerun_max=12
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_tests() { # TARGETS, then the arguments of the programs
  "${CARGO:-cargo}" test --workspace --all-features --no-fail-fast "$@" 2>&1
}

run_tests -- "$@" | tee "$log"
code=${PIPESTATUS[0]}

# `Running tests/main.rs (target/debug/deps/main-0123456789abcdef)`, then the tests, then `test result: ok. ...; finished
# in 12.34s`. Many crates call their program `main`, so that the first of its tests says which one it is.
awk '
  $1 == "Running" { program = $NF; first = ""; gsub(/^.*\/|-[0-9a-f]+\)$/, "", program) }
  $1 == "Doc-tests" { program = $2 " (examples)"; first = "" }
  /^test [^ ]+ \.\.\. / && first == "" { first = ", with " $2 }
  /^test result: .*finished in [0-9.]+s$/ { printf "%.1f s  %s%s\n", $NF + 0, program, first }
' "$log" | sort -rn | head -8 | sed 's/^/slowest: /'
sed -nE 's/^test (.*) has been running for over 60 seconds$/slow: \1 ran for more than a minute/p' "$log" | sort -u

mapfile -t failed < <(sed -nE 's/^test ([^ ]+)( - should panic)? \.\.\. FAILED$/\1/p' "$log" | sort -u)
[[ ${#failed[@]} -gt 0 && ${#failed[@]} -le $rerun_max ]] || exit "$code"
RUST_TEST_THREADS=1 run_tests --tests -- --exact "${failed[@]}" >"$log"
for test in "${failed[@]}"; do
  ended() { grep -qxE "test $test( - should panic)? \.\.\. $1" "$log"; }
  # Tests of several programs may have one name, so that a single failure decides.
  if ended ok && ! ended FAILED; then
    echo "flaky: $test failed, and passes alone"
  else
    echo "failed: $test"
  fi
done
exit "$code"
