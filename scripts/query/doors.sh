#!/usr/bin/env bash
# Asks the questions of traders about a real day through every door: psql, ADBC and two drivers of JDBC.
#
#   scripts/query/doors.sh EVENFALL EVENFALL_QUERY
#
# The day is in EVENFALL_DATA, by default in ../shared/data. What is missing is named in a line that
# begins with "skipped:".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
evenfall=$(realpath "$1")
query=$(realpath "$2")
feed=${EVENFALL_DATA:-$root/../shared/data}/itch/nasdaq_20191230_aapl.itch50
[[ -f $feed ]] || { echo "skipped: no $feed (set EVENFALL_DATA)"; exit 0; }

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
"$evenfall" store append "$work/ticks" aapl --feed "$feed" 2>/dev/null
# Trades and quotes of the store are asked for here; tests ask for those that are made while they are read.
"$evenfall" store derive "$work/ticks" aapl >/dev/null
"$query" serve "$work/ticks" --pg 127.0.0.1:0 --flight 127.0.0.1:0 2>"$work/said" &
until grep -q 'Flight SQL on' "$work/said"; do
  kill -0 $! || { cat "$work/said"; exit 1; }
  sleep .1
done
pg=$(sed -n 's/.*clients of PostgreSQL on \([0-9.:]*\): .*/\1/p' "$work/said")
flight=$(sed -n 's/.*clients of Flight SQL on \([0-9.:]*\): .*/\1/p' "$work/said")

python=$root/target/venv-query/bin/python
if command -v psql >/dev/null && "$python" -c 'import adbc_driver_flightsql' 2>/dev/null; then
  "$python" -W ignore "$here/questions.py" "$query" "$work/ticks" "$pg" "$flight"
else
  echo "skipped: psql and ADBC, for there is no psql or no $python with its drivers (make deps)"
fi

if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
  echo "skipped: JDBC, for there is no JDK or no Maven"
elif ! mvn -q -B -f "$here/jdbc/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$work/jars" >"$work/mvn.log" 2>&1; then
  echo "skipped: JDBC, for Maven cannot fetch it: $(grep -m1 ERROR "$work/mvn.log" | cut -c1-120)"
else
  javac -d "$work" "$here/jdbc/JdbcClients.java"
  java --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$work:$work/jars/*" JdbcClients \
    "$pg" "$flight" aapl "$root/crates/query/sql/tests/questions.sql" 2> >(grep -v -e INFO -e SLF4J -e 'org.apache.arrow' >&2)
fi
