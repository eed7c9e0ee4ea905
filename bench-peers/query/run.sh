#!/bin/sh
# Measures evenfall's joins of time and scans beside DuckDB and Polars on this machine, in one run.
#
#   bench-peers/query/run.sh [--rows N] [--rounds N] [--threads N] [--memory BYTES]
#
# Needs the Python environment of bench-peers/store/check.sh, which installs DuckDB and Polars.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
../store/check.sh --install
(cd "$root" && cargo build --release --quiet --package evenfall-cli --package evenfall-query)
bin=$root/target/release
exec "$root/target/venv-store/bin/python" peers.py "$bin/evenfall" "$bin/evenfall-query" --dir "$root/target" "$@"
