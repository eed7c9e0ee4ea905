#!/usr/bin/env bash
# kazoo's own tests against three replicas of ordered keys. Prints the tests that fail.
#
#   scripts/kazoo-suite.sh PROGRAM [PYTEST ARGUMENTS]
#
# PROGRAM is an `evenfall` with the feature `keys`. The tests of SASL, TLS, reconfiguration and read-only
# mode are left out, because replicas have none of the four.
set -euo pipefail
program=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
venv=target/venv-zookeeper
[[ -x $venv/bin/python ]] || { echo "skipped: no kazoo (scripts/deps.sh installs it)"; exit 0; }
"$venv/bin/python" -c 'import pytest, OpenSSL, jks, objgraph' 2>/dev/null || "$venv/bin/pip" install --quiet pytest==8.4.2 pyopenssl==25.3.0 pyjks==20.0.0 objgraph==3.6.2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
EVENFALL=$program DIRECTORY=$directory PYTHONPATH=scripts "$venv/bin/python" -m pytest \
  -p kazoo_replicas -q --no-header --tb=line --pyargs kazoo.tests \
  --ignore-glob='*sasl*' --ignore-glob='*eventlet*' --ignore-glob='*gevent*' \
  -k 'not SSL and not Reconfig and not ReadOnly' "$@"
