#!/bin/sh
# Measures single-key writes of evenfall, ZooKeeper and etcd on this machine, in one run: three
# servers each, equally many writes under way, logs on one disk.
#
#   bench-peers/consensus/run.sh [--rounds N] [--seconds S] [--outstanding N] [--dir DIR]
#
# Needs cargo and python3. ZooKeeper takes part when Maven and a JDK are there
# (apt-get install maven openjdk-17-jdk-headless), and etcd when Go is there. Without them the
# script says that it leaves their rows out.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
target=$root/target/peers-consensus
mkdir -p "$target"

(cd "$root" && cargo build --release --quiet --package evenfall-cli --package evenfall-lab --features evenfall-cli/keys)
if command -v mvn >/dev/null && command -v java >/dev/null; then
    [ -d "$target/zookeeper" ] ||
        mvn -q -f pom.xml dependency:copy-dependencies -DoutputDirectory="$target/zookeeper"
    set -- --zookeeper "$target/zookeeper/*" "$@"
else
    echo "ZooKeeper is left out: install maven and openjdk-17-jdk-headless" >&2
fi
if command -v go >/dev/null; then
    [ -x "$target/etcd-peer" ] || (cd etcd && go mod tidy && go build -o "$target/etcd-peer" .)
    set -- --etcd "$target/etcd-peer" "$@"
else
    echo "etcd is left out: install Go" >&2
fi
PYTHONPATH=.. exec python3 peers.py --programs "$root/target/release" --dir "$target" "$@"
