#!/bin/sh
# Records real feeds in a store, exports them with `--time-unit us`, and checks that Apache Spark reads the counts and
# sums that a reading in Python has, and the instants as an export of nanoseconds has them.
#
#   bench-peers/store/spark.sh [PROGRAM] [FEED...]      feeds by their whole paths
#
# Needs Java 17 or later and the environment of check.sh, into which it installs pyspark (450 MB) once.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(realpath "${1:-$root/target/release/evenfall}")
[ $# -gt 0 ] && shift
cd "$root/bench-peers/store"
if ! command -v java >/dev/null; then
    echo "skipped: no Java, so Spark reads nothing"
    exit 0
fi
./check.sh --install
venv=$root/target/venv-store
[ -x "$venv/ready" ] || exit 0
if ! "$venv/bin/python" -c "import pyspark" 2>/dev/null; then
    if [ "${NO_INSTALL:-}" = 1 ]; then
        echo "skipped: no pyspark in target/venv-store"
        exit 0
    fi
    echo "installing pyspark into target/venv-store"
    "$venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0
fi
data=${EVENFALL_DATA:-$root/../shared/data}
[ $# -gt 0 ] || set -- "$data/itch/nasdaq_20191230_aapl.itch50" \
    "$data/lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip"
for feed; do
    if [ ! -f "$feed" ]; then
        echo "skipped: no data (set EVENFALL_DATA)"
        exit 0
    fi
done
exec "$venv/bin/python" spark.py "$program" "$@"
