#!/usr/bin/env bash
# How old the newest row of an answer is while a recorder records: 1,000 questions about each table.
#
#   scripts/query/edge.sh EVENFALL EVENFALL_QUERY [RATE] [TRIES]
#
# Needs the Python environment target/venv-query (make deps).
set -euo pipefail
cd "$(dirname "$0")/../.."
evenfall=$(realpath "$1") query=$(realpath "$2") rate=${3:-1000} tries=${4:-1000}
python=$PWD/target/venv-query/bin/python
[ -x "$python" ] || { echo "skipped: no target/venv-query (make deps)"; exit 0; }
dir=$(mktemp -d)
pids=()
stop() { [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"; }
trap stop EXIT
cd "$dir"
cat > e.toml <<END
[run]
clock = "same-host"
warm_up = "300ms"
[feed]
rate = $rate.0
synthetic = { seed = 3, symbols = 20, messages = $((rate * 600)) }
[multicast.membership]
expect_receivers = 1
[[node]]
name = "root"
id = 0
role = "root"
address = "127.0.0.1:39701"
[[node]]
name = "tape"
id = 1
role = "recorder"
address = "127.0.0.1:39702"
record = "ticks"
END
"$evenfall" run recorder --name tape --config e.toml --serve 127.0.0.1:39703 2> tape.log & pids+=($!)
"$evenfall" run root --name root --config e.toml > root.log 2>&1 & pids+=($!)
for _ in $(seq 100); do grep -q "serving tcp" tape.log && break; sleep .1; done
sleep 3
"$query" serve tcp://127.0.0.1:39703 --pg 127.0.0.1:39704 2> query.log & pids+=($!)
for _ in $(seq 100); do grep -q "clients of PostgreSQL" query.log && break; sleep .1; done
sleep 1
cpu() { awk '{print $14 + $15}' "/proc/${pids[0]}/stat"; }
before=$(cpu) since=$(date +%s%N)
"$python" "$OLDPWD/scripts/query/edge.py" 127.0.0.1:39704 feed "$tries"
took=$(( ($(date +%s%N) - since) / 10000000 ))
echo "recorder: $(( $(cpu) - before )) of $took ticks of CPU, load $(cut -d' ' -f1 /proc/loadavg)"
