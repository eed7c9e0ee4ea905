#!/bin/sh
# Sends a feed from evenfall to the crate moldudp and back the other way, and compares the contents.
# Run in this directory after `cargo build --release` here and in the repository's root.
set -eu
evenfall=../../target/release/evenfall
peer=target/release/moldudp-peer
dir=$(mktemp -d)
trap 'kill $pids 2>/dev/null || true; rm -rf "$dir"' EXIT
pids=
hash_of() { "$evenfall" feed info "$1" --json | sed 's/.*"content_hash":"\([0-9a-f]*\)".*/\1/'; }

"$evenfall" feed make "$dir/in.itch" --messages 20000 --seed 5
want=$(hash_of "$dir/in.itch")

echo "evenfall feed play, 5 % lost -> moldudp's client"
"$peer" take 239.192.77.3:26400 127.0.0.1:26401 20000 "$dir/out.itch" & pids="$pids $!"; taker=$!
sleep 1
"$evenfall" feed play "$dir/in.itch" --mold 239.192.77.3:26400 --interface 127.0.0.1 \
    --serve-requests 127.0.0.1:26401 --drop .05 --seed 2 --rate 10000
wait $taker
[ "$(hash_of "$dir/out.itch")" = "$want" ] && echo "equal: $want"

echo "moldudp's server, 5 % left out -> evenfall run root -> a receiver"
cat > "$dir/evenfall.toml" <<TOML
[run]
dir = "."
[feed]
mold = "239.192.77.4:26402"
mold_interface = "127.0.0.1"
mold_request = "127.0.0.1:26403"
mold_from = 1
[[node]]
name = "root"
id = 0
role = "root"
address = "127.0.0.1:26404"
[[node]]
name = "receiver-1"
id = 1
role = "receiver"
address = "127.0.0.1:0"
TOML
"$evenfall" run root --config "$dir/evenfall.toml" --json & pids="$pids $!"; root=$!
"$evenfall" run receiver --config "$dir/evenfall.toml" & pids="$pids $!"; recv=$!
sleep 2
"$peer" give "$dir/in.itch" 239.192.77.4:26402 127.0.0.1:26403
wait $root
wait $recv
grep -q "$want" "$dir/summary-receiver-1.json" && echo "equal: $want"
