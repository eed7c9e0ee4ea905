#!/usr/bin/env bash
# Installs optional tools. evenfall builds and runs without them, but some tests print `skipped:`,
# and `--lab` does not work. Idempotent: installed tools are left alone.
#
#   scripts/deps.sh           install what is missing, each named with what it is for: packages by apt (as
#                             root or with password-less sudo), three Python packages by pip into
#                             target/venv-store, a client of ZooKeeper into target/venv-zookeeper, two of
#                             WebHDFS into target/venv-webhdfs, drivers of SQL into target/venv-query, and a client
#                             of MoldUDP64 by cargo in bench-peers/moldudp
#   NO_INSTALL=1 scripts/deps.sh   the same as --check, and no failure
#   scripts/deps.sh --check   only say what is missing; exit 1 if anything is
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${NO_INSTALL:-} == 1 ]] && set -- --check

# command or file, Debian package, what it is for
wanted=(
  "cc        build-essential  linking Rust programs"
  "ip        iproute2         the lab of network namespaces (--lab)"
  "chromium  chromium         the test that opens a run's report in a browser"
  "dockerd   docker.io        the containers of deploy/test.sh"
  "systemd-analyze systemd    the check of the service units"
  "etcd      etcd-server      the names of a cluster of store nodes"
  "go        golang-go        porcupine, the checker of histories of ordered keys"
  "unzip     unzip            feed files that come as zip archives"
  "mpicc     libopenmpi-dev   MPI_Alltoallv beside bench shuffle (bench-peers/shuffle)"
  "mpirun    openmpi-bin      the same"
  "psql      postgresql-client SQL by the client of PostgreSQL"
  "ovsdb-tool openvswitch-switch the test of flows of files through switches"
  "clang-19  clang-19         whether the program in the kernel is what its source compiles to"
  "llvm-strip-19 llvm-19      the same"
  "/usr/include/bpf/bpf_helpers.h libbpf-dev the same"
  "promtool  prometheus       the rules of alerts that evenfall generate makes"
)

missing=()
for entry in "${wanted[@]}"; do
  read -r command package purpose <<<"$entry"
  if [[ ! -e $command ]] && ! command -v "$command" >/dev/null 2>&1; then
    missing+=("$package")
    echo "missing: $command (package $package), for $purpose"
  fi
done

if ! command -v cargo >/dev/null 2>&1; then
  echo "missing: cargo, for everything; install Rust from https://rustup.rs"
  exit 1
fi

if cargo +nightly --version >/dev/null 2>&1 && ! cargo +nightly fuzz --version >/dev/null 2>&1; then
  echo "missing, and not installed, for \`make test\` needs it not: cargo-fuzz (cargo install cargo-fuzz), for make fuzz"
fi
cargo deny --version >/dev/null 2>&1 \
  || echo "missing, and not installed, for it builds ten minutes: cargo-deny, for licences and advisories"

readers=0
if [[ ! -x target/venv-store/ready || ! -d $(echo target/venv-store/lib/python3*/site-packages/pandas) ]]; then
  readers=1
  echo "missing: duckdb, polars, pandas, pyarrow, mypy and maturin (pip, into target/venv-store), for the test that opens" \
    "Parquet in them, and for those of the Python package"
fi

zookeeper=0
if [[ ! -x target/venv-zookeeper/bin/python ]]; then
  zookeeper=1
  echo "missing: kazoo (pip, into target/venv-zookeeper), for the test of ordered keys with a client of ZooKeeper"
fi

webhdfs=0
if [[ ! -x target/venv-webhdfs/bin/python ]]; then
  webhdfs=1
  echo "missing: hdfs and fsspec (pip, into target/venv-webhdfs), for the test of files with clients of WebHDFS"
fi

objects=0
if [[ ! -x target/venv-deploy/bin/kubernetes-validate ]]; then
  objects=1
  echo "missing: kubernetes-validate (pip, into target/venv-deploy), for the check of objects of Kubernetes"
fi

query=0
if [[ ! -x target/venv-query/bin/python ]]; then
  query=1
  echo "missing: psycopg, SQLAlchemy, pandas, asyncpg and the drivers of ADBC (pip, into target/venv-query), for the test" \
    "of SQL with clients that are not ours"
fi

mold=0
if [[ ! -x bench-peers/moldudp/target/release/moldudp-peer ]]; then
  mold=1
  echo "missing: moldudp-peer (cargo, in bench-peers/moldudp), for the test of gateways with a foreign client"
fi

if [[ ${#missing[@]} -eq 0 && $mold -eq 0 && $readers -eq 0 && $zookeeper -eq 0 && $webhdfs -eq 0 && $objects -eq 0 && $query -eq 0 ]]; then
  [[ ${1:-} == --check ]] || echo "all there"
  exit 0
fi
if [[ ${1:-} == --check ]]; then
  echo "optional, and skipped without; \`make deps\` installs them"
  [[ ${NO_INSTALL:-} == 1 ]] && exit 0
  exit 1
fi
# Installs Debian's packages beside the rest, because apt mostly waits for servers and disks.
install_packages() {
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "no apt-get here; install by your own package manager: ${missing[*]}"
    return 1
  fi
  as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    if ! sudo -n true 2>/dev/null; then
      echo "not root, and no sudo without a password; run: sudo apt-get install -y ${missing[*]}"
      return 1
    fi
    as_root=(sudo -n)
  fi
  echo "installing with apt-get: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
  echo "installed: ${missing[*]}"
}
install_packages &
packages=$!
[[ $readers -eq 0 ]] || bench-peers/store/check.sh --install
if [[ $zookeeper -eq 1 ]]; then
  echo "installing kazoo with pip"
  python3 -m venv target/venv-zookeeper && target/venv-zookeeper/bin/pip install --quiet kazoo==2.11.0 \
    || rm -rf target/venv-zookeeper
fi
if [[ $webhdfs -eq 1 ]]; then
  echo "installing hdfs and fsspec with pip"
  python3 -m venv target/venv-webhdfs && target/venv-webhdfs/bin/pip install --quiet hdfs==2.7.3 \
    fsspec==2026.9.0 requests==2.34.2 || rm -rf target/venv-webhdfs
fi
if [[ $objects -eq 1 ]]; then
  echo "installing kubernetes-validate with pip"
  python3 -m venv target/venv-deploy && target/venv-deploy/bin/pip install --quiet kubernetes-validate==1.37.0 \
    || rm -rf target/venv-deploy
fi
if [[ $query -eq 1 ]]; then
  echo "installing drivers of SQL with pip"
  python3 -m venv target/venv-query && target/venv-query/bin/pip install --quiet 'psycopg[binary]==3.3.9' \
    SQLAlchemy==2.1.9 pandas==3.1.1 asyncpg==0.32.0 adbc-driver-flightsql==1.13.0 adbc-driver-postgresql==1.13.0 \
    pyarrow==26.0.1 || rm -rf target/venv-query
fi
# The build below may need the C compiler of the packages. It is tried without them too.
code=0
wait "$packages" || code=$?
if [[ $mold -eq 1 ]]; then
  echo "building moldudp-peer with cargo"
  cargo build --release --quiet --locked --manifest-path bench-peers/moldudp/Cargo.toml \
    || echo "moldudp-peer does not build here"
fi
exit "$code"
