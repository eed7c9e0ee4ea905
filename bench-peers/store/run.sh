#!/bin/sh
# Measures the store, QuestDB, DuckDB, ArcticDB and a raw file on this machine, in one run.
#
#   bench-peers/store/run.sh [--rounds N] [--rows N]
#
# Needs Python 3 with venv; DuckDB and ArcticDB go into target/venv-peers by themselves. QuestDB
# takes part when Maven and a JDK are there (apt-get install maven openjdk-17-jdk-headless).
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
venv=$root/target/venv-peers
questdb_version=9.3.4
jar="$HOME/.m2/repository/org/questdb/questdb/$questdb_version/questdb-$questdb_version.jar"

if [ ! -x "$venv/ready" ]; then
    mkdir -p "$root/target"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        duckdb==2.0.0 arcticdb==6.28.2 pyarrow==26.0.1 pandas==2.3.3
    printf '#!/bin/sh\n' >"$venv/ready" && chmod +x "$venv/ready"
fi
(cd "$root" && cargo build --release --quiet --package evenfall-cli --package evenfall-lab)
if command -v mvn >/dev/null && command -v java >/dev/null; then
    [ -f "$jar" ] || mvn -q dependency:get -Dartifact="org.questdb:questdb:$questdb_version"
    (cd questdb && cargo build --release --quiet)
    set -- --questdb-jar "$jar" --questdb-peer questdb/target/release/questdb-peer "$@"
else
    echo "QuestDB is left out: install maven and openjdk-17-jdk-headless" >&2
fi
exec "$venv/bin/python" peers.py "$root/target/release/evenfall" --dir "$root/target" "$@"
