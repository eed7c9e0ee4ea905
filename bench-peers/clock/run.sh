#!/bin/sh
# Compares the clocks of evenfall with chrony and linuxptp on this machine, in one run: two network
# namespaces, one clock below them, and stamps by the kernel. Five rounds take seven minutes.
#
#   bench-peers/clock/run.sh [--rounds N] [--seconds S] [--polls LOG2] [--json FILE]
#
# Needs root, iproute2, cargo and python3. chrony and linuxptp take part when they are installed
# (apt-get install chrony linuxptp). Without them the script says that it leaves their rows out.
# PROGRAMS=DIR takes evenfall-lab from a directory and builds nothing.
set -eu
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
if [ -z "${PROGRAMS:-}" ]; then
    (cd "$root" && cargo build --release --quiet --package evenfall-lab)
    PROGRAMS=$root/target/release
fi
PYTHONPATH=.. exec python3 peers.py --programs "$PROGRAMS" "$@"
