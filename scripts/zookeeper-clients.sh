#!/usr/bin/env bash
# Clients of ZooKeeper that are not ours, against three replicas of ordered keys: Go's (go-zookeeper/zk), Rust's
# (zookeeper-client), C's (libzookeeper), and ClickHouse with replicated tables. A replica is killed and started again
# while ClickHouse writes. Prints what each client checked, and fails at the first answer that ZooKeeper gives otherwise.
#
#   scripts/zookeeper-clients.sh PROGRAM [go|rust|c|clickhouse ...]
#
# PROGRAM is an `evenfall` with the feature `keys`. A client whose tools are missing is skipped by name: Go and cargo fetch
# their clients, and Debian's packages libzookeeper-mt-dev, clickhouse-server and clickhouse-client have the other two.
# As root these packages are installed, unless NO_INSTALL=1.
set -euo pipefail
program=$(realpath "$1")
shift
clients=("$@")
[[ $# -gt 0 ]] || clients=(go rust c clickhouse)
cd "$(dirname "$0")/.."
sources=$PWD/scripts/zookeeper/clients
work=$PWD/target/zookeeper-clients
mkdir -p "$work"
directory=$(mktemp -d)
first_port=${FIRST_PORT:-24811}
servers=127.0.0.1:$first_port,127.0.0.1:$((first_port + 1)),127.0.0.1:$((first_port + 2))
replicas=()
clickhouse=

end() {
  kill -9 "${replicas[@]}" $clickhouse 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$directory"
}
trap end EXIT
trap 'exit 130' INT TERM

# Waits up to a minute until a command succeeds.
within_minute() {
  for _ in $(seq 600); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep .1
  done
  return 1
}

start_replica() {
  "$program" run keys --node="$1" --of=3 --zookeeper="$first_port" --dir "$directory/keys" \
    >"$directory/replica-$1.log" 2>&1 &
  replicas[$1]=$!
  within_minute nc_open $((first_port + $1)) || { echo "replica $1 takes no clients"; cat "$directory/replica-$1.log"; exit 1; }
}

nc_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

installed() {
  [[ -n $(dpkg-query -W -f '${Version}' "$1" 2>/dev/null) ]] && return
  [[ ${NO_INSTALL:-} != 1 && $(id -u) -eq 0 ]] && command -v apt-get >/dev/null || return 1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

go_client() {
  command -v go >/dev/null || { echo "skipped: Go's client, for there is no Go"; return; }
  (cd "$sources/go" && go build -o "$work/go-client" .) 2>"$directory/go.log" \
    || { echo "skipped: Go's client, for Go cannot fetch it: $(tail -1 "$directory/go.log")"; return; }
  "$work/go-client" "$servers"
}

rust_client() {
  CARGO_TARGET_DIR=$work/rust cargo build --quiet --locked --manifest-path "$sources/rust/Cargo.toml" \
    || { echo "skipped: Rust's client, for cargo cannot build it"; return; }
  "$work/rust/debug/zookeeper-clients" "$servers"
}

c_client() {
  installed libzookeeper-mt-dev || { echo "skipped: C's client, for there is no libzookeeper-mt-dev"; return; }
  cc -Wall -Wextra -Werror -DTHREADED -o "$work/c-client" "$sources/c/client.c" -lzookeeper_mt
  "$work/c-client" "$servers"
}

ask() { clickhouse-client --host 127.0.0.1 --port $((first_port + 10)) --query "$1"; }

# Fails when a query answers anything else. ClickHouse copies between replicas of a table in the background, so
# that the answer may take a moment.
answers() {
  answer_is() { [[ $(ask "$1") == "$2" ]]; }
  within_minute answer_is "$1" "$2" || { echo "clickhouse: $1: $(ask "$1" 2>&1 | head -3), not $2"; exit 1; }
  checks=$((checks + 1))
}

clickhouse_client() {
  installed clickhouse-server clickhouse-client || { echo "skipped: ClickHouse, for there is no clickhouse-server"; return; }
  local port=$((first_port + 10)) checks=0 nodes= number server
  mkdir -p "$directory"/clickhouse/{data,tmp,files,schemas}
  for number in 0 1 2; do
    nodes+="<node><host>127.0.0.1</host><port>$((first_port + number))</port></node>"
  done
  sed -e "s|DIRECTORY|$directory/clickhouse|g" -e "s|INTERSERVER|$((port + 2))|" -e "s|HTTP|$((port + 1))|" \
    -e "s|PORT|$port|g" -e "s|NODES|$nodes|" "$sources/clickhouse/config.xml" >"$directory/clickhouse/config.xml"
  cp "$sources/clickhouse/users.xml" "$directory/clickhouse/users.xml"
  clickhouse-server --config-file="$directory/clickhouse/config.xml" >"$directory/clickhouse/out" 2>&1 &
  clickhouse=$!
  within_minute ask "SELECT 1" || { echo "clickhouse: no server"; tail -5 "$directory/clickhouse/errors"; exit 1; }

  local table="(day Date, n UInt64) ENGINE = ReplicatedMergeTree('/clickhouse/ticks', 'NAME') PARTITION BY day ORDER BY n"
  for number in a b c; do ask "CREATE TABLE $number ${table/NAME/$number}"; done
  answers "SELECT total_replicas FROM system.replicas WHERE table = 'a'" 3
  ask "INSERT INTO a SELECT toDate('2026-11-20'), number FROM numbers(1000)"
  answers "SELECT count() FROM b" 1000
  # The same block again is known by its hash, which is a node.
  ask "INSERT INTO b SELECT toDate('2026-11-20'), number FROM numbers(1000)"
  answers "SELECT count() FROM c" 1000
  for number in 0 1 2; do
    kill -9 "${replicas[$number]}"
    for block in 1 2 3 4 5; do
      # A write that a lost session refuses is made again, and taken once.
      within_minute ask "INSERT INTO a SELECT toDate('2026-11-21'), $number * 500 + $block * 100 + number FROM numbers(100)"
    done
    start_replica "$number"
  done
  answers "SELECT count(), uniqExact(n) FROM c WHERE day = '2026-11-21'" $'1500\t1500'
  # The replicas of the table elect a leader anew when a session has ended.
  within_minute ask "ALTER TABLE b DROP PARTITION '2026-11-20'"
  answers "SELECT count() FROM a WHERE day = '2026-11-20'" 0
  ask "CREATE TABLE d ON CLUSTER both ${table/NAME/d}" >/dev/null
  answers "SELECT count() FROM d" 1500
  answers "SELECT count() FROM system.zookeeper WHERE path = '/clickhouse/ticks/replicas'" 4
  echo "clickhouse: $checks checks passed"
}

for number in 0 1 2; do start_replica "$number"; done
for client in "${clients[@]}"; do "${client}_client"; done
