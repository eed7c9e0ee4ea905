#!/usr/bin/env bash
# Replicated files beside an HDFS minicluster and beside sendfile, in one sitting: one JSON line each.
#
#   bench-peers/files/run.sh [ARGUMENTS OF evenfall bench files]
#
# HDFS takes part when a JDK 17 and Maven are there, once with blocks that are synced when they are complete and once as
# it comes, without a sync.
set -euo pipefail
cd "$(dirname "$0")/../.."
source bench-peers/files/minicluster.sh
cargo build --release --quiet --package evenfall-cli --features files --package evenfall-lab
lab=target/release/evenfall-lab
java=$(bench-peers/files/jars.sh) || java=
directory=$(mktemp -d -p target)
trap 'rm -rf "$directory"' EXIT
hdfs() {
  minicluster "$1" "$2"
  shift 2
  "$lab" bench files --server "${address#webhdfs://}" --pid "$server" --user "$(id -un)" --json "$@"
  exec 9>&-
  wait "$server" || true
  rm -rf "$directory"/*
}
for copies in 1 3; do
  echo "evenfall $copies $("$lab" bench files --dir "$directory" --copies "$copies" --json "$@")"
  [[ -n $java ]] || continue
  for mode in synced unsynced; do
    echo "hdfs-$mode $copies $(hdfs "$copies" "$mode" --copies "$copies" --dir "$directory" "$@")"
  done
done
