#!/bin/sh
# Measures the sort of evenfall beside others on this machine, in one run.
#
#   bench-peers/sort/run.sh [--rounds N] [--records N] [--ranks N]
#
# The sort of one rank's keys beside the standard library's of C++ and, with IPS4O=DIR (a checkout of ips4o;
# libtbb-dev), beside ips4o. The whole sort over ranks beside a sample sort by MPI of the same plan (openmpi-bin,
# libopenmpi-dev) and beside Polars in one process. What is missing is left out by name.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
out=$root/target/bench-sort
mkdir -p "$out"
if [ -n "${IPS4O:-}" ]; then
    g++ -O3 -march=native -std=c++17 -DHAS_IPS4O -I"$IPS4O/include" local.cpp -o "$out/local" -pthread -ltbb
else
    echo "ips4o is left out: set IPS4O to a checkout" >&2
    g++ -O3 -march=native -std=c++17 local.cpp -o "$out/local"
fi
if command -v mpicxx >/dev/null; then
    mpicxx -O3 -march=native -std=c++17 sample_sort.cpp -o "$out/sample_sort"
else
    echo "MPI is left out: install libopenmpi-dev openmpi-bin" >&2
fi
program=${PROGRAM:-$root/target/release/evenfall}
[ -n "${PROGRAM:-}" ] || (cd "$root" && cargo build --release --quiet --package evenfall-cli --features burst)
exec "$root/target/venv-store/bin/python" peers.py "$program" "$out" "$@"
