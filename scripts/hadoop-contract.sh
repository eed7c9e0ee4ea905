#!/usr/bin/env bash
# Hadoop's own tests of file systems over WebHDFS, against `evenfall run files`. Prints the tests that fail or are
# skipped with their reasons, and a table of counts. Fails when a test fails that is not in
# bench-peers/files/known-failures, or when one of those passes.
#
#   scripts/hadoop-contract.sh PROGRAM [CLASS ...]   PROGRAM is an `evenfall` with the feature `files`
#   scripts/hadoop-contract.sh hdfs [CLASS ...]      the same tests against an HDFS minicluster, which judges nothing
#
# Needs a JDK 17 and Maven, and says in one line what is missing.
set -euo pipefail
program=$1
shift
[[ $program == hdfs ]] || program=$(realpath "$program")
cd "$(dirname "$0")/.."
source bench-peers/files/minicluster.sh
directory=$(mktemp -d)
server=
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  [[ -z $server ]] || wait "$server" 2>/dev/null || true
  rm -rf "$directory"
}
trap finish EXIT
java=$(bench-peers/files/jars.sh 2>"$directory/said") || {
  echo "skipped: Hadoop's contract tests: $(tail -n 1 "$directory/said")"
  exit 0
}
if [[ $program == hdfs ]]; then
  minicluster 3
else
  host=127.0.97.1:9870
  "$program" run files --local 3 --webhdfs "$host" --dir "$directory/files" >"$directory/log" 2>&1 &
  server=$!
  until curl -sf "http://$host/evenfall/status" | grep -q '"live".*"live".*"live"'; do
    kill -0 "$server" || { tail "$directory/log"; exit 1; }
    sleep .2
  done
  address=webhdfs://$host
fi
results=$directory/results
$java Contract "$address" "$@" 2>"$directory/errors" | tee "$results" | grep -v '^counts' || true
echo "class passed failed skipped"
sed -n 's/^counts //p' "$results"
grep -q '^counts' "$results" || { tail "$directory/errors"; exit 1; }
[[ $program != hdfs ]] || exit 0
names() { sed -n 's/^failed \([^:]*\):.*/\1/p' "$results" | sort -u; }
new=$(comm -23 <(names) <(grep -v '^#' bench-peers/files/known-failures | sort -u))
[[ -z $new ]] || { echo "these tests fail, and are not known to:" $new; exit 1; }
[[ $# -eq 0 ]] || exit 0
gone=$(comm -13 <(names) <(grep -v '^#' bench-peers/files/known-failures | sort -u))
[[ -z $gone ]] || { echo "these tests pass, and bench-peers/files/known-failures still has them:" $gone; exit 1; }
