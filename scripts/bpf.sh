#!/usr/bin/env bash
# Compiles the forwarding program of crates/port/ebpf and compares the object with the committed one.
# `scripts/bpf.sh --write` commits to a new object. The bytes depend on the compiler, so that another
# version than the one below says `skipped:`.
set -euo pipefail
cd "$(dirname "$0")/../crates/port/ebpf/bpf"

wanted="19.1.7"
if ! clang-19 --version 2>/dev/null | grep -q "version $wanted"; then
  echo "skipped: clang-19 $wanted is not here (apt: clang-19, llvm-19, libbpf-dev)"
  exit 0
fi
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
clang-19 -O2 -g -Wall -Werror -target bpf -mcpu=v3 -fdebug-compilation-dir=. \
  -I"/usr/include/$(uname -m)-linux-gnu" -c forward.bpf.c -o "$fresh"
# The kernel reads BTF. DWARF is for people, and would name the folders of this machine.
llvm-strip-19 --strip-debug "$fresh"
if [ "${1:-}" = "--write" ]; then
  install -m 644 "$fresh" forward.bpf.o
elif ! cmp "$fresh" forward.bpf.o; then
  echo "bpf: forward.bpf.o is not what the source compiles to; run scripts/bpf.sh --write"
  exit 1
fi
echo "bpf: forward.bpf.o is what the source compiles to"
