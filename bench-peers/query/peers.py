"""Measures evenfall, DuckDB and Polars on joins of time and on bars, and prints one table.

    peers.py EVENFALL EVENFALL_QUERY [--rows N] [--rounds N] [--threads N] [--memory BYTES] [--files DIR]

Each engine reads its own files: evenfall a store of fixed records, DuckDB its database, Polars
Parquet. All rows are in order of time. Each question runs in a fresh process, so that the table has
the greatest memory and the processor time of each one. Rounds are interleaved, and the table has
medians. Answers of all engines must be equal.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from decimal import Decimal

DAY_NS = 1_795_185_000_000_000_000
SESSION_NS = 23_400_000_000_000
SYMBOLS = 1_000
# A process that takes longer is ended, and its row says so.
SECONDS_MAX = 120
SCHEMA = {
    "record_bytes": 24,
    "price_decimals": 4,
    "fields": [
        {"name": "time", "offset": 0, "len": 8, "type": "time"},
        {"name": "price", "offset": 8, "len": 8, "type": "price"},
        {"name": "symbol", "offset": 16, "len": 4, "type": "u32"},
        {"name": "size", "offset": 20, "len": 4, "type": "u32"},
    ],
}

# The words of evenfall, and those of DuckDB where they differ.
BARS = """
SELECT count(*), sum(volume), sum(high), sum(low), sum(opened), sum(closed) FROM (
  SELECT symbol, {bucket} AS minute, max(price) AS high, min(price) AS low, sum(size) AS volume,
         {first} AS opened, {last} AS closed
  FROM {b} GROUP BY 1, 2) bars"""
WINDOW = """
SELECT count(*), count(b.time), sum(b.size), sum(b.price) FROM {a} a
LEFT JOIN {b} b ON b.time BETWEEN a.time - INTERVAL '500 milliseconds' AND a.time AND a.symbol = b.symbol"""
ASOF = """
SELECT count(*), count(b.time), sum(b.size), sum(b.price) FROM {a} a
ASOF {left} JOIN {b} b {match}"""


def asof(a, b):
    # Times are unique in each table, so that no answer depends on an order of equal times.
    ours = ASOF.format(a=a, b=b, left="", match="MATCH_CONDITION (a.time >= b.time) ON a.symbol = b.symbol")
    theirs = ASOF.format(a=a, b=b, left="LEFT", match="ON a.symbol = b.symbol AND a.time >= b.time")
    return ours, theirs, (a, b)


def window(a, b):
    sql = WINDOW.format(a=a, b=b)
    return sql, sql, None


def bars(b):
    ours = BARS.format(
        b=b, bucket="time_bucket('1 minute', time)", first="first(price, time)", last="last(price, time)")
    theirs = BARS.format(
        b=b, bucket="time_bucket(INTERVAL '1 minute', time)",
        first="arg_min(price, time)", last="arg_max(price, time)")
    return ours, theirs, None


def words(count):
    return f"{count // 1_000_000} M" if count % 1_000_000 == 0 else f"{count // 1_000} k"


def make_rows(rows, seed):
    """Times, prices, symbols by Zipf's law, and sizes."""
    import numpy as np

    random = np.random.default_rng(seed)
    step = SESSION_NS // rows
    # One time for each row; two tables never share a time, and microseconds keep DuckDB's exact.
    times = DAY_NS + (np.arange(rows, dtype=np.int64) * step + random.integers(0, step // 2_000, rows) * 2_000) \
        // 1_000 * 1_000 + seed % 2 * 1_000
    weights = 1 / np.arange(1, SYMBOLS + 1)
    symbols = random.choice(SYMBOLS, size=rows, p=weights / weights.sum()).astype(np.uint32)
    prices = 1_000_000 + random.integers(-5_000, 5_000, rows)
    sizes = random.integers(1, 1_000, rows).astype(np.uint32)
    return times, prices, symbols, sizes


def make_files(place, evenfall, tables):
    import duckdb
    import pyarrow
    import pyarrow.parquet

    (place / "schema.json").write_text(json.dumps(SCHEMA))
    database = duckdb.connect(str(place / "peer.duckdb"))
    store = str(place / "store")
    for seed, (name, rows) in enumerate(tables.items()):
        times, prices, symbols, sizes = make_rows(rows, seed)
        raw = pyarrow.table({"time": times, "price": prices, "symbol": symbols, "size": sizes})
        pyarrow.parquet.write_table(raw, place / f"{name}.parquet", row_group_size=1_000_000)
        del times, prices, symbols, sizes
        database.execute(
            f"CREATE TABLE {name} AS SELECT make_timestamp(time // 1000) AS time, "
            f"(price / 10000)::DECIMAL(18, 4) AS price, symbol, size FROM raw")
        database.execute(
            f"COPY (SELECT time, price / 10000 AS price, symbol, size FROM raw) TO '{place}/{name}.csv' (HEADER)")
        del raw
        subprocess.run([evenfall, "store", "create", store, name, "--schema", str(place / "schema.json")],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run([evenfall, "store", "append", store, name, "--csv", str(place / f"{name}.csv"),
                        "--time-ahead", "3650d"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (place / f"{name}.csv").unlink()
    database.close()


def ask_duckdb(place, threads, sql):
    import duckdb

    database = duckdb.connect(str(place / "peer.duckdb"), read_only=True)
    database.execute(f"SET threads = {threads}")
    begun, cpu = time.perf_counter(), time.process_time()
    rows = database.execute(sql).fetchall()
    return time.perf_counter() - begun, time.process_time() - cpu, rows


def ask_polars(place, a, b):
    import polars

    begun, cpu = time.perf_counter(), time.process_time()
    left = polars.read_parquet(place / f"{a}.parquet", columns=["time", "symbol"])
    right = polars.read_parquet(place / f"{b}.parquet").with_columns(polars.col("time").alias("b_time"))
    joined = left.join_asof(right, on="time", by="symbol", check_sortedness=False)
    found = joined.select(
        polars.len(), polars.col("b_time").count(), polars.col("size").cast(polars.Int64).sum().alias("s"),
        polars.col("price").sum())
    rows = [tuple(found.row(0))]
    return time.perf_counter() - begun, time.process_time() - cpu, rows


def run(command, environment=None):
    """Output, wall, processor seconds and greatest memory of a process; None when it takes too long."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, **(environment or {})})
        ended, status, usage = 0, 0, None
        while ended == 0:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended == 0 and time.perf_counter() - begun > SECONDS_MAX:
                process.kill()
                os.wait4(process.pid, 0)
                return None
            time.sleep(0.002)
        wall = time.perf_counter() - begun
        out.seek(0)
        errors.seek(0)
        said = errors.read().decode()
        if status != 0:
            raise SystemExit(f"{command}: {said}")
        return out.read().decode(), said, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(engine, question, options, place):
    ours, theirs, tables = question
    threads = str(options.threads)
    if engine == "evenfall":
        found = run([options.query, str(place / "store"), ours, "--threads", threads, "--memory", options.memory,
                     "--format", "csv", "--timing"])
        if found is None:
            return None
        out, said, _, cpu, memory = found
        timing = json.loads(said.strip().splitlines()[-1])
        seconds = (timing["plan_us"] + timing["run_us"]) / 1e6
        row = tuple(Decimal(cell) for cell in out.strip().splitlines()[1].split(","))
        return seconds, cpu, memory, [row]
    if engine == "polars" and tables is None:
        return None
    inner = ["duckdb", threads, theirs] if engine == "duckdb" else ["polars", threads, *tables]
    found = run([sys.executable, __file__, "--inner", str(place), *inner], {"POLARS_MAX_THREADS": threads})
    if found is None:
        return None
    out, _, _, _, memory = found
    seconds, cpu, rows = json.loads(out)
    rows = [tuple(Decimal(cell) for cell in row) for row in rows]
    if engine == "polars":
        rows = [(*row[:3], row[3].scaleb(-4)) for row in rows]
    return seconds, cpu, memory, rows


def inner(place, engine, threads, *words_of):
    place = pathlib.Path(place)
    found = ask_duckdb(place, threads, *words_of) if engine == "duckdb" else ask_polars(place, *words_of)
    seconds, cpu, rows = found
    print(json.dumps([seconds, cpu, [[str(cell) for cell in row] for row in rows]]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("evenfall")
    parser.add_argument("query")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="128MiB")
    parser.add_argument("--dir", default=".")
    parser.add_argument("--files", help="keep the files here, and take those of an earlier run")
    options = parser.parse_args()
    rows, few, some = options.rows, 100_000, max(options.rows // 10, 1)
    place = pathlib.Path(options.files or tempfile.mkdtemp(prefix="query-peers-", dir=options.dir))
    try:
        tables = {"a": rows, "b": rows, "few": few, "part": some}
        # In a process of its own: a process begins with the greatest memory of the one that made it.
        place.mkdir(exist_ok=True)
        making = [sys.executable, __file__, "--make", str(place), options.evenfall, json.dumps(tables)]
        if not (place / "peer.duckdb").exists():
            subprocess.run(making, check=True)
        large, small = words(rows), words(few)
        questions = {
            f"as-of, {large} by {large}": asof("a", "b"),
            f"as-of, {small} by {large}": asof("few", "b"),
            f"as-of, {large} by {small}": asof("b", "few"),
            f"window of 500 ms, {small} by {large}": window("few", "b"),
            f"window of 500 ms, {small} by {words(some)}": window("few", "part"),
            f"minute bars by symbol, {large}": bars("b"),
        }
        engines = ["evenfall", "duckdb", "polars"]
        taken = {}
        for round_number in range(options.rounds):
            for name, question in questions.items():
                answers = {}
                for engine in engines:
                    found = measure(engine, question, options, place)
                    if found is None:
                        continue
                    taken.setdefault((name, engine), []).append(found[:3])
                    answers[engine] = found[3]
                if len(set(map(str, answers.values()))) > 1:
                    print(f"{name}: answers differ: {answers}", file=sys.stderr)
            print(f"round {round_number + 1}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        print("| what | engine | seconds | CPU seconds | greatest memory, MiB |\n|---|---|---|---|---|")
        for name in questions:
            for engine in engines:
                runs = taken.get((name, engine))
                if runs is None:
                    if engine == "duckdb":
                        print(f"| {name} | {engine} | over {SECONDS_MAX} | | |")
                    continue
                seconds, cpu, memory = (statistics.median(column) for column in zip(*runs))
                print(f"| {name} | {engine} | {seconds:.2f} | {cpu:.2f} | {memory:,.0f} |")
    finally:
        if not options.files:
            shutil.rmtree(place)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inner"]:
        inner(*sys.argv[2:])
    elif sys.argv[1:2] == ["--make"]:
        make_files(pathlib.Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    else:
        main()
