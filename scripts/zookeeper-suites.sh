#!/usr/bin/env bash
# Tests of ZooKeeper's clients against three replicas of ordered keys: kazoo's, those of ZooKeeper's own Java client, and
# Curator's. Prints the tests that fail, and fails when one fails that docs/results/order.md does not list.
#
#   scripts/zookeeper-suites.sh PROGRAM [smoke|all] [kazoo|zookeeper|curator ...]
#
# PROGRAM is an `evenfall` with the feature `order`. `smoke` runs a few classes of each suite, `all` runs every class that
# needs no server inside its own process. Java's suites need a JDK of version 11 or later and Maven, which fetches their
# classes into target/zookeeper-suites at the first run. EVENFALL_HOST is a loopback address for the replicas.
set -euo pipefail
program=$(realpath "$1")
extent=${2:-all}
shift $(($# > 2 ? 2 : $#))
suites=("${@:-kazoo}")
[[ $# -gt 0 ]] || suites=(kazoo zookeeper curator)
cd "$(dirname "$0")/.."
work=$PWD/target/zookeeper-suites
sources=$PWD/scripts/zookeeper
# The password of the super user is `test`.
super=super:D/InIHSb7yEEbrWz8b9l71RjZJU=

# Classes of ZooKeeper's tests that reach the server by its port alone.
zookeeper_smoke=(test.ACLRootTest test.ChrootTest test.NullDataTest test.StatTest)
zookeeper_all=("${zookeeper_smoke[@]}" GetAllChildrenNumberTest GetEphemeralsTest RemoveWatchesTest ZKUtilTest
  ZooKeeperTest test.AsyncOpsTest test.AuthTest test.ChrootAsyncTest test.ChrootClientTest
  test.ClientTest test.CreateTest test.DisconnectedWatcherTest test.GetChildren2Test test.MultiAsyncTransactionTest
  test.MultiOperationTest test.PersistentRecursiveWatcherTest test.PersistentWatcherACLTest test.PersistentWatcherTest
  test.SessionInvalidationTest test.SessionTimeoutTest test.SyncCallTest test.WatcherFuncTest test.WatcherTest)
curator_smoke=(recipes.nodes.TestGroupMember recipes.barriers.TestDistributedBarrier
  recipes.locks.TestInterProcessMultiMutex recipes.shared.TestSharedCount)
curator_all=("${curator_smoke[@]}" recipes.atomic.TestCachedAtomicCounter recipes.atomic.TestDistributedAtomicLong
  recipes.barriers.TestDistributedDoubleBarrier recipes.cache.TestCuratorCache recipes.cache.TestCuratorCacheEdges
  recipes.cache.TestCuratorCacheEventOrdering recipes.cache.TestNodeCache recipes.cache.TestPathChildrenCache
  recipes.cache.TestTreeCache recipes.leader.TestLeaderAcls recipes.leader.TestLeaderLatch
  recipes.leader.TestLeaderSelector recipes.leader.TestLeaderSelectorParticipants recipes.locks.TestInterProcessMutex
  recipes.locks.TestInterProcessReadWriteLock recipes.locks.TestInterProcessSemaphore
  recipes.locks.TestInterProcessSemaphoreMutex recipes.locks.TestLockACLs recipes.nodes.TestPersistentEphemeralNode
  recipes.nodes.TestPersistentNode recipes.nodes.TestPersistentTtlNode recipes.queue.TestBoundedDistributedQueue
  recipes.queue.TestDistributedDelayQueue recipes.queue.TestDistributedPriorityQueue
  recipes.queue.TestDistributedQueue recipes.queue.TestSimpleDistributedQueue recipes.watch.TestPersistentWatcher
  imps.TestCreate imps.TestCreateReturningStat imps.TestDelete imps.TestEnsureContainers imps.TestExistsBuilder
  imps.TestFramework imps.TestFrameworkBackground imps.TestMultiClient imps.TestSetData imps.TestTempFramework
  imps.TestTransactionsNew imps.TestTransactionsOld imps.TestTtlNodes imps.TestWatcherRemovalManager
  imps.TestWatchesBuilder)

directory=$(mktemp -d)
replicas=
finish() {
  [[ -z $replicas ]] || { kill "$replicas" 2>/dev/null && wait "$replicas"; } || true
  rm -rf "$directory"
}
trap finish EXIT

# Sets `addresses` to three replicas that answer.
start() {
  local host=${EVENFALL_HOST:-127.0.0.1}
  "$program" run order --local 3 --zookeeper "$host:23811" --dir "$directory/$1" \
    --zoo minSessionTimeout=500 --zoo maxSessionTimeout=60000 --zoo "superDigest=$super" \
    --zoo znode.container.checkIntervalMs=500 >"$directory/$1.log" 2>&1 &
  replicas=$!
  addresses=$host:23811,$host:23812,$host:23813
  "$program" kv --servers "$addresses" put ready yes >/dev/null
}

stop() {
  kill "$replicas" 2>/dev/null && wait "$replicas" || true
  replicas=
}

# The classes of a Java suite, below target/zookeeper-suites/SUITE.
prepare() {
  local to=$work/$1
  command -v javac >/dev/null && command -v mvn >/dev/null || { echo "skipped: $1, for there is no JDK or no Maven"; return 1; }
  if [[ ! -f $to/ready ]]; then
    mvn -q -B -f "$sources/$1/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$to/jars" >"$directory/mvn.log" 2>&1 \
      || { echo "skipped: $1, for Maven cannot fetch it: $(grep -m1 ERROR "$directory/mvn.log" | cut -c1-120)"; return 1; }
    mkdir -p "$to" && touch "$to/ready"
  fi
  rm -rf "$to/classes"
  javac -nowarn -d "$to/classes" -cp "$to/jars/*" $(find "$sources/shared" "$sources/$1" -name '*.java')
}

# Runs the classes of a suite, each named behind its prefix.
java_suite() {
  local suite=$1 prefix=$2 chosen=()
  shift 2
  prepare "$suite" || return 0
  for class in "$@"; do chosen+=(--select-class "$prefix$class"); done
  start "$suite"
  # The tests leave files in the directory that they run in.
  mkdir -p "$directory/tests"
  (cd "$directory/tests" && java -Xmx512m "-Devenfall.replicas=$addresses" -Dzookeeper.extendedTypesEnabled=true -Dzookeeper.4lw.commands.whitelist='*' \
    -cp "$work/$suite/classes:$work/$suite/jars/*" org.junit.platform.console.ConsoleLauncher --disable-banner \
    --details=tree --disable-ansi-colors "${chosen[@]}" >"$work/$suite.log" 2>&1) || true
  stop
  judge "$suite" "$work/$suite.log"
}

# Compares the tests that failed with those that docs/results/order.md names.
judge() {
  local failed
  failed=$(sed -n '/^Failures/,$p' "$2" | sed -nE 's/^  JUnit [^:]*:([^:]*):([A-Za-z0-9_]+).*/\1.\2/p' | sort -u)
  grep -E 'tests (successful|failed|skipped|found)' "$2" | tr -d '[]' | tr -s ' ' | tr '\n' ',' | sed "s/^/$1:/; s/,\$/\n/"
  grep -q 'tests successful' "$2" || { tail -n 20 "$2"; status=1; return; }
  for test in $failed; do
    if grep -q "\`$test\`" docs/results/order.md; then echo "$1: $test fails, as docs/results/order.md says"; else
      echo "$1: $test fails"; status=1
    fi
  done
}

status=0
for suite in "${suites[@]}"; do
  declare -n smoke=${suite}_smoke all=${suite}_all
  case $suite in
    kazoo)
      if [[ $extent == smoke ]]; then set -- -k 'TestClient or KazooLock'; else set --; fi
      ./scripts/kazoo-suite.sh "$program" "$@" || status=1
      ;;
    zookeeper | curator)
      prefix=org.apache.$suite.
      [[ $suite == zookeeper ]] || prefix+=framework.
      if [[ $extent == smoke ]]; then classes=("${smoke[@]}"); else classes=("${all[@]}"); fi
      java_suite "$suite" "$prefix" "${classes[@]}"
      ;;
    *) echo "no such suite: $suite"; exit 2 ;;
  esac
done
exit $status
