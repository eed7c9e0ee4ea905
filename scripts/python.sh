#!/usr/bin/env bash
# Tests the Python package `evenfall` (apps/python).
#
#   scripts/python.sh           the module as the tests of the workspace build it, with the readers in
#                               target/venv-store (`make deps` installs them)
#   scripts/python.sh --wheel   the wheel of `make dist`, with the program inside, in a fresh environment of
#                               each Python from 3.11 to 3.13 that is here
#
# With NO_INSTALL=1 nothing is installed. What is missing is named in a line that begins with "skipped:".
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
readers=target/venv-store

if [[ ! -x $readers/bin/python ]] || ! "$readers/bin/python" -c 'import numpy, pandas, polars, duckdb, pyarrow' 2>/dev/null; then
  if [[ ${NO_INSTALL:-} == 1 ]]; then
    echo "skipped: no Python with pandas, polars, duckdb and pyarrow in $readers (make deps)"
    exit 0
  fi
  bench-peers/store/check.sh --install
fi
if ! "$readers/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "skipped: the package wants Python 3.11, and $("$readers/bin/python" --version) is here"
  exit 0
fi

# The tests of the package in this environment, with the program as the tests of the workspace build it.
run_tests() {
  local python=$1
  TESTED_PROGRAM=$PWD/$target/debug/evenfall EVENFALL_QUERY=$PWD/$target/debug/evenfall-query \
    EVENFALL_LAB=$PWD/$target/debug/evenfall-lab \
    "$python" -m unittest discover --start-directory apps/python/tests
}

# The features and the profile of all other tests, so that this build shares their crates.
cargo test --workspace --all-features --quiet --no-run --test module --test runs --test program

if [[ ${1:-} != --wheel ]]; then
  package=target/python
  rm -rf "$package"
  mkdir -p "$package"
  cp -r apps/python/evenfall "$package/"
  cp "$target/debug/deps/libevenfall_python.so" "$package/evenfall/_evenfall.abi3.so"
  PYTHONPATH=$PWD/$package run_tests "$readers/bin/python"
  exit
fi

scripts/dist.sh wheel
for version in 3.11 3.12 3.13; do
  if ! command -v "python$version" >/dev/null || ! "python$version" -c 'import venv' 2>/dev/null; then
    echo "skipped: no Python $version"
    continue
  fi
  fresh=target/venv-wheel-$version
  rm -rf "$fresh"
  "python$version" -m venv "$fresh"
  "$fresh/bin/pip" install --quiet --disable-pip-version-check target/dist/*.whl \
    duckdb==2.0.0 polars==2.1.0 pandas==3.1.1 pyarrow
  "$fresh/bin/python" -m evenfall demo --receivers 2 --messages 400 --dir "$fresh/demo" >/dev/null
  run_tests "$fresh/bin/python"
  rm -rf "$fresh"
done
