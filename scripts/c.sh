#!/usr/bin/env bash
# Tests the C library (apps/c): its examples in C11 and C++17 under the address sanitizer, as receivers
# beside Python's of one run, and as the root of another.
#
#   scripts/c.sh            the library as the tests of the workspace build it
#   scripts/c.sh --install  builds the library for release into target/c: header, libevenfall.so,
#                           libevenfall.a and evenfall.pc, for a prefix (PREFIX, /usr/local by default)
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

if [[ ${1:-} == --install ]]; then
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
  # Lines of functions would be stripped again. The wheel (scripts/dist.sh) leaves them out too, and shares the crates.
  export CARGO_PROFILE_RELEASE_DEBUG=false
  cargo rustc --release --package evenfall-c --crate-type cdylib
  cargo rustc --release --package evenfall-c --crate-type staticlib
  out=$target/c
  rm -rf "$out"
  mkdir -p "$out"/{include,lib/pkgconfig}
  cp apps/c/include/evenfall.h "$out/include/"
  cp "$target/release/libevenfall_c.so" "$out/lib/libevenfall.so.0"
  cp "$target/release/libevenfall_c.a" "$out/lib/libevenfall.a"
  strip --strip-unneeded "$out/lib/libevenfall.so.0"
  strip --strip-debug "$out/lib/libevenfall.a"
  ln -s libevenfall.so.0 "$out/lib/libevenfall.so"
  sed "s|@PREFIX@|${PREFIX:-/usr/local}|; s|@VERSION@|$version|" apps/c/evenfall.pc.in >"$out/lib/pkgconfig/evenfall.pc"
  ls -l "$out/include" "$out/lib"
  exit
fi

for compiler in gcc g++; do
  if ! command -v $compiler >/dev/null; then
    echo "skipped: no $compiler for the C library's examples"
    exit 0
  fi
done
# The features and the profile of all other tests, so that this build shares their crates.
cargo test --workspace --all-features --quiet --no-run --test header --test runs

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
cp "$target/debug/deps/libevenfall_c.so" "$work/libevenfall.so.0"
ln -s libevenfall.so.0 "$work/libevenfall.so"
strict=(-Wall -Wextra -Werror -g -fsanitize=address,undefined -fno-sanitize-recover -I apps/c/include)
linked=(-L "$work" -levenfall -Wl,-rpath,"$work" -pthread)
gcc -std=c11 -pedantic -D_GNU_SOURCE "${strict[@]}" apps/c/examples/subscribe.c -o "$work/subscribe" "${linked[@]}"
gcc -std=c11 -pedantic -D_GNU_SOURCE "${strict[@]}" apps/c/examples/publish.c -o "$work/publish" "${linked[@]}"
gcc -std=c11 -pedantic -D_GNU_SOURCE "${strict[@]}" apps/c/examples/batches.c -o "$work/batches" "${linked[@]}"
gcc -std=c11 -pedantic -D_GNU_SOURCE "${strict[@]}" apps/c/tests/misuse.c -o "$work/misuse" "${linked[@]}"
g++ -std=c++17 "${strict[@]}" apps/c/examples/subscribe.cpp -o "$work/subscribe-cpp" "${linked[@]}"

"$work/misuse"

evenfall=$target/debug/evenfall
python=target/venv-store/bin/python
# Each run of this script has loopback addresses of its own, so that other tests may run beside it.
host=127.$((RANDOM % 200 + 20)).$((RANDOM % 250 + 1)).$((RANDOM % 250 + 1))

# One run with receivers in C, C++ and Python, each with a key of its own, and one in C that is killed.
"$evenfall" feed make "$work/day.itch50" --messages 6000 >/dev/null
{
  printf '[feed]\nfile = "%s"\nrate = 3000\n[run]\ndir = "%s"\n' "$work/day.itch50" "$work/run"
  printf 'key_file = "shared.key"\nmaster_key_file = "master.key"\nnode_key_file = "keys/{name}.key"\n'
  printf '[[node]]\nname = "root"\nid = 0\nrole = "root"\naddress = "%s:9000"\n' "$host"
  for desk in 1 2 3 4; do
    [[ $desk == 3 && ! -e target/python/evenfall ]] && continue
    printf '[[node]]\nname = "desk-%s"\nid = %s\nrole = "receiver"\naddress = "%s:900%s"\n' $desk $desk "$host" $desk
  done
} >"$work/evenfall.toml"
"$evenfall" key new "$work/shared.key" >/dev/null
"$evenfall" key new --nodes --config "$work/evenfall.toml" >/dev/null
"$evenfall" run root --config "$work/evenfall.toml" >"$work/root.txt" 2>&1 &
root=$!
"$work/subscribe" "$work/evenfall.toml" desk-1 >"$work/c.txt" &
desks=($!)
"$work/subscribe-cpp" "$work/evenfall.toml" desk-2 >"$work/cpp.txt" &
desks+=($!)
if [[ -e target/python/evenfall ]]; then
  PYTHONPATH=target/python "$python" -c "
import evenfall as ev, pyarrow, pyarrow.compute as compute
with ev.subscribe('$work/evenfall.toml', 'desk-3', hashed=True) as feed:
    rows = pyarrow.concat_tables(batch.arrow() for batch in feed.batches())
    kinds, named = rows['type'].to_pylist(), len(rows) - rows['symbol'].null_count
    shares, dollars = compute.sum(rows['shares']), compute.sum(rows['price'])
    print('messages', len(rows), 'lost', feed.lost, 'adds', kinds.count('A'), 'named', named,
          'shares', shares, 'dollars', dollars, 'hash', feed.content_hash)
" >"$work/python.txt" &
  desks+=($!)
else
  echo "skipped: no Python package in target/python (make python) beside C and C++"
fi
"$work/subscribe" "$work/evenfall.toml" desk-4 >"$work/killed.txt" &
killed=$!
disown $killed
until grep -q 'the feed begins' "$work/root.txt"; do
  kill -0 $root || { cat "$work/root.txt"; exit 1; }
  sleep .1
done
kill -9 $killed
wait "${desks[@]}" "$root"
hash=$("$evenfall" feed info "$work/day.itch50" --json | sed -n 's/.*"content_hash": *"\([0-9a-f]*\)".*/\1/p')
fields=$(sed -n 's/.*\(adds .*\) hash.*/\1/p' "$work/c.txt")
[[ $fields =~ ^adds\ [1-9].*named\ [1-9].*shares\ [1-9].*dollars\ [1-9] ]] || { echo "failed: no fields in C: $fields"; exit 1; }
for told in c cpp python; do
  [[ -e $work/$told.txt ]] || continue
  echo "$told: $(cat "$work/$told.txt")"
  grep -qF " $fields hash" "$work/$told.txt" || { echo "failed: C reads $fields"; exit 1; }
  grep -q "messages 6000 lost 0 .*hash $hash" "$work/$told.txt" || { echo "failed: the feed's hash is $hash"; exit 1; }
done

# A root in C, and a receiver in C beside it.
"$work/publish" "$host:9100" 7 "$host:9107" 2000 >"$work/publish.txt" &
publish=$!
"$work/subscribe" "$host:9100" "$host:9107" 7 >"$work/published.txt"
wait $publish
echo "published: $(cat "$work/publish.txt"), taken: $(cat "$work/published.txt")"
grep -q '^messages 2000 lost 0' "$work/published.txt"
grep -q '^messages 2000$' "$work/publish.txt"
echo "c: ok"
