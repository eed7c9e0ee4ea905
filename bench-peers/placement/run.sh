#!/bin/sh
# Compares the quadratic assignment of evenfall and of scipy on this machine, in one run. Both have
# one thread and take turns.
#
#   bench-peers/placement/run.sh [--rounds N] [--instances N] [--sizes 25,100,200] [--large 1000] [--qaplib DIR]
#                                [--json FILE]
#
# Needs cargo and Python 3 with venv. numpy and scipy go into target/venv by themselves.
set -eu
cd "$(dirname "$0")"
venv=../target/venv
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet numpy==2.4.6 scipy==1.17.1
fi
(cd ../.. && cargo build --release --quiet --package evenfall-cli --package evenfall-lab)
exec "$venv/bin/python" qap.py --evenfall ../../target/release/evenfall "$@"
