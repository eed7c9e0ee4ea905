#!/bin/sh
# Fetches the jars of Hadoop with Maven and compiles the classes of this directory, both once. Prints the Java command
# with which they run; without a JDK, Maven or the jars, says on standard error what is missing and fails.
set -eu
cd "$(dirname "$0")"
out=$PWD/../../target/hadoop
mkdir -p "$out"
if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    echo "no JDK 17 and Maven here (apt-get install openjdk-17-jdk-headless maven)" >&2
    exit 1
fi
if [ ! -s "$out/classpath" ] || [ pom.xml -nt "$out/classpath" ]; then
    if [ "${NO_INSTALL:-}" = 1 ]; then
        echo "the jars of Hadoop are not here, and NO_INSTALL=1 keeps them from being fetched" >&2
        exit 1
    fi
    echo "fetching the jars of Hadoop into ~/.m2, a few hundred megabytes" >&2
    if ! mvn -q -B dependency:build-classpath -Dmdep.outputFile="$out/classpath" >"$out/maven.log" 2>&1; then
        echo "Maven cannot fetch the jars of Hadoop: $(grep -m 1 ERROR "$out/maven.log" | cut -c 1-200)" >&2
        rm -f "$out/classpath"
        exit 1
    fi
fi
for class in Minicluster Contract; do
    if [ ! "$out/$class.class" -nt "$class.java" ] || [ ! "$out/$class.class" -nt "$out/classpath" ]; then
        javac -nowarn -cp "$(cat "$out/classpath")" -d "$out" "$class.java" >&2
    fi
done
cp webhdfs.xml "$out/"
# A quiet log: Hadoop writes a page for each call that is refused.
echo "log4j.rootLogger=OFF" >"$out/log4j.properties"
opens=""
for of in lang lang.reflect lang.invoke util util.concurrent io net nio text time math; do
    opens="$opens --add-opens=java.base/java.$of=ALL-UNNAMED"
done
echo "java -Xmx1g $opens --add-opens=java.base/sun.nio.ch=ALL-UNNAMED -Dtest.build.data=$out/data" \
    "-Djava.net.preferIPv4Stack=true -cp $out:$(cat "$out/classpath")"
