#!/bin/sh
# Records real feeds in a store, and checks that DuckDB and Polars (from Parquet) and pyarrow (from
# an Arrow stream) read equal counts and sums.
#
#   bench-peers/store/check.sh [--spark] [PROGRAM] [FEED...]
#   bench-peers/store/check.sh --install      only install what the check needs
#
# PROGRAM is evenfall (default: built here). By default the feeds are those of EVENFALL_DATA or of
# ../shared/data beside the repository. The check needs Python 3 with venv. The script installs
# duckdb, polars, pyarrow and fsspec into target/venv-store when they are missing, with pandas, mypy,
# nbformat and maturin for scripts/python.sh. With NO_INSTALL=1 it installs nothing, and names what is missing
# in a line that begins with "skipped:". With --spark, Apache Spark alone reads the feeds but captures (spark.py); this
# takes Java 17 and pyspark, 450 MB once.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
venv=$root/target/venv-store
script=check.py
if [ "${1:-}" = --spark ]; then
    script=spark.py
    shift
    command -v java >/dev/null || { echo "skipped: no Java, so Spark reads nothing"; exit 0; }
fi
has() {
    [ -d "$(echo "$venv"/lib/python3*/site-packages/"$1")" ]
}
if [ ! -x "$venv/ready" ] || ! has fsspec || ! has pandas; then
    if [ "${NO_INSTALL:-}" = 1 ]; then
        echo "skipped: no Python with duckdb, polars and pyarrow in target/venv-store (make deps)"
        exit 0
    fi
    echo "installing duckdb, polars and pyarrow into target/venv-store, to open what the store exports"
    mkdir -p "$root/target"
    if ! { python3 -m venv "$venv" &&
        "$venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 polars==2.1.0 \
            pandas==3.1.1 pyarrow fsspec==2026.9.0 requests==2.34.2 mypy==2.4.1 maturin==1.16.0 \
            nbformat==5.11.1 &&
        printf '#!/bin/sh\n' >"$venv/ready" && chmod +x "$venv/ready"; } >"$root/target/venv-store.log" 2>&1
    then
        echo "skipped: no Python with duckdb, polars and pyarrow (see target/venv-store.log)"
        exit 0
    fi
fi
[ "${1:-}" != --install ] || exit 0
if [ $script = spark.py ] && ! has pyspark; then
    if [ "${NO_INSTALL:-}" = 1 ]; then
        echo "skipped: no pyspark in target/venv-store"
        exit 0
    fi
    echo "installing pyspark into target/venv-store"
    "$venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0
fi
program=${1:-}
[ $# -gt 0 ] && shift
if [ -z "$program" ]; then
    (cd "$root" && cargo build --release --quiet --package evenfall-cli --features full)
    program=$root/target/release/evenfall
fi
if [ $# -eq 0 ]; then
    data=${EVENFALL_DATA:-$root/../shared/data}
    set -- "$data/itch/nasdaq_20191230_aapl.itch50" \
        "$data/lobster/LOBSTER_SampleFile_AAPL_2012-06-21_1.zip"
    [ $script = spark.py ] || set -- "$@" "$data/pcap/Cme.Mdp3.Sbe.v6.1.pcap"
fi
for feed; do
    if [ ! -f "$feed" ]; then
        echo "skipped: no data (set EVENFALL_DATA)"
        exit 0
    fi
done
exec "$venv/bin/python" $script "$program" "$@"
