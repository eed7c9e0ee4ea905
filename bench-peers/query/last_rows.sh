#!/usr/bin/env bash
# The last 10,000 rows of a table, two columns, by psql: evenfall beside PostgreSQL on this machine.
#
#   bench-peers/query/last_rows.sh EVENFALL EVENFALL_QUERY [ROWS] [ROUNDS]
#
# Both servers are warm, and their rounds are interleaved. psql's own \timing is the measure. PostgreSQL has
# an index on the time, as the store has. Needs psql and the server of PostgreSQL.
set -euo pipefail
evenfall=$(realpath "$1") query=$(realpath "$2") rows=${3:-1000000} rounds=${4:-41}
server=$(command -v pg_ctl || ls /usr/lib/postgresql/*/bin/pg_ctl 2>/dev/null | tail -1 || true)
[ -n "$server" ] && command -v psql >/dev/null || { echo "skipped: no PostgreSQL"; exit 0; }
server=$(dirname "$(realpath "$server")")
dir=$(mktemp -d)
chmod 755 "$dir"
as=()
# PostgreSQL does not start as root.
[ "$(id -u)" -ne 0 ] || as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
cleanup() {
  [ -z "${served:-}" ] || kill "$served" 2>/dev/null || true
  "${as[@]}" "$server/pg_ctl" -D "$dir/pg/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$dir"
}
trap cleanup EXIT
awk -v n="$rows" 'BEGIN { srand(7); print "time,price,symbol,size"
  for (i = 0; i < n; i++) printf "%.0f,%.4f,%d,%d\n", 1795185000000000000 + i * 23000, 100 + rand(), rand() * 1000, 1 + rand() * 999 }' > "$dir/t.csv"
cat > "$dir/schema.json" <<'END'
{"record_bytes": 24, "price_decimals": 4, "fields": [
  {"name": "time", "offset": 0, "len": 8, "type": "time"}, {"name": "price", "offset": 8, "len": 8, "type": "price"},
  {"name": "symbol", "offset": 16, "len": 4, "type": "u32"}, {"name": "size", "offset": 20, "len": 4, "type": "u32"}]}
END
"$evenfall" store create "$dir/store" t --schema "$dir/schema.json" >/dev/null
"$evenfall" store append "$dir/store" t --csv "$dir/t.csv" --time-ahead 3650d >/dev/null 2>&1
mkdir "$dir/pg" && chmod 777 "$dir/pg"
"${as[@]}" "$server/initdb" -D "$dir/pg/data" -A trust -U anyone --no-sync >/dev/null
"${as[@]}" "$server/pg_ctl" -D "$dir/pg/data" -w -l "$dir/pg/log" -o "-p 39711 -k $dir/pg -h 127.0.0.1" start >/dev/null
peer=(psql -X -q -h 127.0.0.1 -p 39711 -U anyone -d postgres)
"${peer[@]}" -c "CREATE TABLE raw (time bigint, price numeric(18, 4), symbol int, size int)" \
  -c "\\copy raw FROM '$dir/t.csv' CSV HEADER" \
  -c "CREATE TABLE t AS SELECT timestamptz 'epoch' + time / 1000 * interval '1 microsecond' AS time, price, symbol, size FROM raw" \
  -c "CREATE INDEX ON t (time)" -c "VACUUM ANALYZE t"
: > "$dir/said"
"$query" serve "$dir/store" --pg 127.0.0.1:39712 2>"$dir/said" & served=$!
until grep -q 'clients of PostgreSQL' "$dir/said"; do sleep .1; done
ours=(psql -X -q -h 127.0.0.1 -p 39712 -U anyone -d public)
from=$("${peer[@]}" -At -c "SELECT time AT TIME ZONE 'UTC' FROM t ORDER BY time DESC OFFSET 9999 LIMIT 1")
sql="SELECT time, price FROM t WHERE time >= TIMESTAMPTZ '${from}Z' ORDER BY time"
for door in ours peer; do
  declare -n psql=$door
  [ "$("${psql[@]}" -At -c "$sql" | wc -l)" -eq 10000 ] || { echo "$door: not 10,000 rows"; exit 1; }
done
for _ in $(seq "$rounds"); do
  for door in ours peer; do
    declare -n psql=$door
    # The second of two in a connection: the first one plans and warms the connection.
    printf '\\timing on\n\\o /dev/null\n%s;\n%s;\n' "$sql" "$sql" | "${psql[@]}" \
      | awk -v door=$door '/^Time/ { last = $2 } END { print door, last }'
  done
done > "$dir/times"
for door in ours peer; do
  grep "^$door" "$dir/times" | sort -k2 -n | awk -v door=$door '{ all[NR] = $2 } END { print door, "median", all[int((NR + 1) / 2)], "ms, least", all[1], "of", NR }'
done
echo "$rows rows, load $(cut -d' ' -f1 /proc/loadavg)"
