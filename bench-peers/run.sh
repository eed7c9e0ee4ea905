#!/bin/sh
# Measures the fan-out of evenfall and of other systems on this machine, in one run.
#
#   bench-peers/run.sh [--rounds N] [--seconds S] [--fanout F] [--size BYTES] [--json FILE]
#
# Needs cargo and a C++ compiler. Aeron takes part when Maven and a JDK are there
# (apt-get install maven openjdk-17-jdk-headless); without them the script says
# that it leaves its row out.
set -eu
cd "$(dirname "$0")"
aeron_version=1.44.1
jar="$HOME/.m2/repository/io/aeron/aeron-all/$aeron_version/aeron-all-$aeron_version.jar"

cargo build --release --quiet
if command -v mvn >/dev/null && command -v javac >/dev/null; then
    [ -f "$jar" ] || mvn -q dependency:get -Dartifact="io.aeron:aeron-all:$aeron_version"
    mkdir -p target/aeron
    javac -cp "$jar" -d target/aeron aeron/Peer.java
    set -- --aeron "target/aeron:$jar" "$@"
else
    echo "Aeron is left out: install maven and openjdk-17-jdk-headless" >&2
fi
exec ./target/release/bench-peers "$@"
