#!/usr/bin/env bash
# Runs every fuzz target for some seconds, on its corpus and on a copy that grows beside it. A finding
# stays in fuzz/artifacts and fails; put it into fuzz/corpus/TARGET, where every test run replays it.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]     3 seconds and all targets by default
#   FUZZ_FEATURES=none scripts/fuzz.sh        without the targets of the services, which build long
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-3}
shift || true
if ! cargo +nightly --version >/dev/null 2>&1; then
  echo "skipped: fuzzing needs a nightly Rust (rustup toolchain install nightly)"
  exit 0
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
  echo "skipped: fuzzing needs cargo-fuzz (cargo install cargo-fuzz --locked)"
  exit 0
fi
targets=("$@")
# The address sanitiser is off. Our crates forbid unsafe code except for the driver's sockets, which
# no target opens, and without the sanitiser the build and the runs take half the time.
options=(--sanitizer none)
[[ ${FUZZ_FEATURES:-} == none ]] && options+=(--no-default-features)
if [[ ${#targets[@]} -eq 0 ]]; then
  skip='^$'
  [[ ${FUZZ_FEATURES:-} == none ]] \
    && skip=$(grep -B2 'required-features' fuzz/Cargo.toml | sed -n 's/^name = "\(.*\)"/\1/p' | paste -sd'|')
  mapfile -t targets < <(cargo +nightly fuzz list | grep -vxE "$skip")
fi
cargo +nightly fuzz build "${options[@]}" 2>&1 | tail -3
failed=()
for target in "${targets[@]}"; do
  grown=target/fuzz-corpus/$target
  mkdir -p "$grown"
  log=$(mktemp)
  if cargo +nightly fuzz run "${options[@]}" "$target" "$grown" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 >"$log" 2>&1; then
    echo "fuzz: $target: $(grep -o 'Done [0-9]* runs.*' "$log" || tail -1 "$log")"
  else
    echo "fuzz: $target FAILED"
    tail -30 "$log"
    failed+=("$target")
  fi
  rm -f "$log"
done
[[ ${#failed[@]} -eq 0 ]] || { echo "fuzz: failed: ${failed[*]}"; exit 1; }
