#!/usr/bin/env bash
# Tests of ZooKeeper's clients against three replicas of ordered keys: kazoo's, those of ZooKeeper's own Java client,
# and Curator's. Prints the tests that fail. Fails when a test fails that the table in docs/results/consensus.md does not
# list, and when a class does not end. A line names each listed test that passes. A test that is not listed and fails
# runs once more by itself, because many tests of Curator have time limits that a busy machine exceeds, and the second
# attempt counts.
#
#   scripts/zookeeper-suites.sh PROGRAM [smoke|all] [kazoo|zookeeper|curator|CLASS ...]
#
# PROGRAM is an `evenfall` with the feature `keys`. `smoke` runs a few tests of each suite, `all` runs every class,
# each in a Java process of its own and LANES of them at once. `all CLASS` runs one class of Java. Each test has new
# replicas, which are processes: a test that stops its server kills them. Java's suites need a JDK of version 11 or
# later and Maven, which fetches their classes into target/zookeeper-suites at the first run. SUITE_HOST is the
# first loopback address for replicas. KILL_EVERY=SECONDS is the time between two kills of a replica that no client is
# connected to. A killed replica is started again.
set -euo pipefail
program=$(realpath "$1")
extent=${2:-all}
shift $(($# > 2 ? 2 : $#))
chosen=("$@")
[[ $# -gt 0 ]] || chosen=(kazoo zookeeper curator)
cd "$(dirname "$0")/.."
work=$PWD/target/zookeeper-suites
sources=$PWD/scripts/zookeeper
host=${SUITE_HOST:-127.0.0.1}
# Most tests wait most of their time.
lanes=${LANES:-4}
# Seconds that a test and that a class may take.
test_limit=240
class_limit=1200

# Tests of the smoke wait for no fixed times. They use sessions, nodes of all kinds, transactions, watches and a server
# that is killed. Each line runs in a Java process of its own.
zookeeper_smoke=("test.ACLRootTest test.ChrootTest test.NullDataTest test.StatTest")
zookeeper_all=(${zookeeper_smoke[0]} GetAllChildrenNumberTest GetEphemeralsTest RemoveWatchesTest ZKUtilTest
  ZooKeeperTest test.AsyncOpsTest test.AuthTest test.ChrootAsyncTest test.ChrootClientTest
  test.ClientTest test.CreateTest test.DisconnectedWatcherTest test.GetChildren2Test test.MultiAsyncTransactionTest
  test.MultiOperationTest test.PersistentRecursiveWatcherTest test.PersistentWatcherACLTest test.PersistentWatcherTest
  test.SessionInvalidationTest test.SessionTimeoutTest test.SyncCallTest test.WatcherFuncTest test.WatcherTest)
barrier=recipes.barriers.TestDistributedBarrier
mutex=recipes.locks.TestInterProcessMultiMutex
count=recipes.shared.TestSharedCount
curator_smoke=(
  "recipes.nodes.TestGroupMember $barrier#testMultiClient $barrier#testBasic $barrier#testNoBarrier"
  "$mutex#testLocker $mutex#testReentrantSingleLock $mutex#testReentrant $mutex#testWithNamespace $mutex#testContainerCleanup
  $mutex#testWaitingProcessKilledServer $mutex#testSomeReleasesFail $mutex#testSomeLocksFailToLock"
  "$count#testMultiClientVersioned $count#testMultiClientDifferentSeed $count#testSimpleVersioned")
curator_all=(recipes.nodes.TestGroupMember $barrier $mutex $count
  recipes.atomic.TestCachedAtomicCounter recipes.atomic.TestDistributedAtomicLong
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
trap 'rm -rf "$directory"' EXIT

# The classes of a Java suite, below target/zookeeper-suites/SUITE.
prepare() {
  local to=$work/$1
  command -v javac >/dev/null && command -v mvn >/dev/null || { echo "skipped: $1, for there is no JDK or no Maven"; return 1; }
  if [[ ! -f $to/ready ]]; then
    mvn -q -B -f "$sources/$1/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$to/jars" >"$directory/mvn.log" 2>&1 \
      || { echo "skipped: $1, for Maven cannot fetch it: $(grep -m1 ERROR "$directory/mvn.log" | cut -c1-120)"; return 1; }
    mkdir -p "$to" && touch "$to/ready"
  fi
  if [[ ! -d $to/classes || -n $(find "$sources/shared" "$sources/$1" -newer "$to/classes") ]]; then
    rm -rf "$to/classes"
    javac -nowarn -d "$to/classes" -cp "$to/jars/*" $(find "$sources/shared" "$sources/$1" -name '*.java')
  fi
}

# Runs tests of a suite in one Java process: `java_tests SUITE NAME NUMBER TEST...`. The number gives the processes that run
# at once different addresses.
java_tests() {
  local suite=$1 to=$directory/$1/$2 picked=() test began=$SECONDS prefix=org.apache.$1.
  local address=${host%.*}.$((${host##*.} + 3 * ($3 % 80)))
  [[ $suite == zookeeper ]] || prefix+=framework.
  shift 3
  for test in "$@"; do
    if [[ $test == org.* ]]; then picked+=(--select-method "$test")
    elif [[ $test == *#* ]]; then picked+=(--select-method "$prefix$test"); else picked+=(--select-class "$prefix$test"); fi
  done
  # The tests leave files in the directory that they run in.
  mkdir -p "$to/tests"
  (cd "$to/tests" && timeout -k 5 $class_limit java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    "-Djava.io.tmpdir=$to/tests" "-Devenfall.program=$program" "-Devenfall.host=$address" \
    "-Devenfall.kill-every=${KILL_EVERY:-0}" \
    -Dzookeeper.serverCnxnFactory=evenfall.NoServer -Dzookeeper.extendedTypesEnabled=true \
    "-Djunit.jupiter.execution.timeout.default=$test_limit s" \
    -cp "$work/$suite/classes:$work/$suite/jars/*" org.junit.platform.console.ConsoleLauncher --disable-banner \
    --details=none --disable-ansi-colors --reports-dir "$to" "${picked[@]}" >"$to/log" 2>&1) || true
  rm -rf "$to/tests"
  echo "$((SECONDS - began)) s" >"$to/time"
}

# Tests with `passed`, `failed` or `skipped` and their full names, out of the reports below a directory. A test that ran
# with several arguments has failed when one of the runs has.
results() {
  find "$1" -name 'TEST-junit-*.xml' -exec cat {} + | awk -F'"' '
    /<testcase /  { name = $2; sub(/[({[].*/, "", name); full = $4 "#" $2; sub(/\[[0-9]+\]$/, "", full); gsub(/ /, "", full)
                    sub(/.*\./, "", $4); test = $4 "." name; fulls[test] = full; what = "passed" }
    /<(failure|error)[ >]/ { what = "failed" }
    /<skipped/    { what = "skipped" }
    /<\/testcase>/ { if (is[test] != "failed" && !(is[test] == "passed" && what == "skipped")) is[test] = what }
    END { for (test in is) print test, is[test], fulls[test] }' | sort
}

# Whether the first column of the table in docs/results/consensus.md has a test.
is_listed() {
  grep -qxF "$1" <<<"$listed"
}

# Compares the tests of a suite with the table.
judge() {
  local suite=$1 test what full first again=() passed=0 failed=0 skipped=0
  first=$(results "$directory/$suite")
  while read -r test what full; do
    [[ $what != failed ]] || is_listed "$test" || again+=("$full")
  done <<<"$first"
  [[ ${#again[@]} -eq 0 ]] || java_tests "$suite" again 0 "${again[@]}"
  while read -r test what full; do
    [[ -n $test ]] || continue
    if [[ $what == failed ]] && ! is_listed "$test"; then
      if results "$directory/$suite/again" | grep -q "^$test passed "; then
        echo "$suite: $test failed once, and passed by itself"
        what=passed
      else
        echo "$suite: $test fails"
        status=1
      fi
    elif [[ $what == failed ]]; then
      echo "$suite: $test fails, as docs/results/consensus.md says"
    elif [[ $what == passed ]] && is_listed "$test"; then
      echo "$suite: $test passes, and docs/results/consensus.md says that it fails"
    fi
    (($what += 1))
  done <<<"$first"
  for log in "$directory/$suite"/*/log; do
    if [[ ! -f ${log%/log}/TEST-junit-jupiter.xml ]]; then
      echo "$suite: $(basename "${log%/log}") did not end in $class_limit s, or not at all"
      tail -n 20 "$log"
      status=1
    fi
  done
  echo "$suite: $passed tests passed, $failed failed, $skipped were skipped by themselves"
  rm -rf "$work/reports-$suite"
  cp -r "$directory/$suite" "$work/reports-$suite"
}

# Waits until another class may begin.
turn() {
  while (($(jobs -rp | wc -l) >= lanes)); do wait -n || true; done
}

listed=$(grep -oE '^\| `[^|]*\|' docs/results/consensus.md | grep -oE '`[A-Za-z0-9]+\.[A-Za-z0-9_]+`' | tr -d '`')
status=0 number=0 suites=()
for what in "${chosen[@]}"; do
  case $what in
    kazoo)
      if [[ $extent == smoke ]]; then set -- -k 'TestClient or KazooLock'; else set --; fi
      turn
      { ./scripts/kazoo-suite.sh "$program" "$@" || echo "kazoo: some tests fail"; } >"$directory/kazoo.log" 2>&1 &
      continue
      ;;
    zookeeper | curator)
      suite=$what
      declare -n tests=${suite}_$extent
      ;;
    *)
      suite=$([[ ${what##*.} == Test* ]] && echo curator || echo zookeeper)
      only=("$what")
      declare -n tests=only
      ;;
  esac
  prepare "$suite" || continue
  [[ " ${suites[*]} " == *" $suite "* ]] || suites+=("$suite")
  for unit in "${tests[@]}"; do
    turn
    java_tests "$suite" "${unit%%[# ]*}" $number $unit &
    number=$((number + 1))
  done
done
wait
if [[ -f $directory/kazoo.log ]]; then
  cat "$directory/kazoo.log"
  ! grep -q '^kazoo: some tests fail' "$directory/kazoo.log" || status=1
fi
for suite in "${suites[@]}"; do judge "$suite"; done
exit $status
