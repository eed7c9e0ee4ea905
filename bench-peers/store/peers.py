"""Measures the store, QuestDB, DuckDB, ArcticDB and a raw file in one run, and prints one table.

    peers.py PROGRAM [--rounds N] [--rows N] [--questdb-jar JAR --questdb-peer PROGRAM]

A row has 16 bytes: a time and a number. Each system runs with its documented fast settings and one
client. The rounds are interleaved, and the table has their medians. The systems promise different
things when they acknowledge a row, and the table states the promise of each.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

import numpy as np

BATCHES = (1_000, 10_000)
RANGE = 10_000
SECONDS_MAX = 1


# The ticks of `evenfall bench store`: exponential gaps and a price that walks. They begin again after
# this many, which are more than a row group of any of these systems repeats.
TICKS = 1 << 16
GAP_NS = 1_000
draws = np.random.default_rng(1)
gaps_ns = np.maximum(1, draws.exponential(GAP_NS, TICKS).astype(np.int64))
prices = 1_000_000 + np.cumsum(100 * draws.integers(-2, 3, TICKS))
ends_ns = np.cumsum(gaps_ns)


def rows_of(first, count):
    """Times and prices of `count` rows. Times are nanoseconds since 1970."""
    at = np.arange(first, first + count, dtype=np.int64)
    times_ns = at // TICKS * ends_ns[-1] + ends_ns[at % TICKS]
    return times_ns.view("datetime64[ns]"), prices[at % TICKS]


def range_ns(rows):
    """First and last nanosecond of `RANGE` rows in the middle."""
    times, _ = rows_of(rows // 2, RANGE)
    return int(times[0].view(np.int64)), int(times[-1].view(np.int64))


def disk_bytes(place):
    """Bytes that the files below this directory take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())


def fed(parts, take):
    """Rows per second when `take` gets the parts one by one, for some seconds at most."""
    rows, begun = 0, time.perf_counter()
    for part in parts:
        take(part)
        rows += len(part)
        if time.perf_counter() - begun > SECONDS_MAX:
            break
    return rows / (time.perf_counter() - begun)


def timed(work, times=1):
    """Median seconds of a call."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


class Raw:
    """A file that is written in batches, with one fdatasync at the end."""

    name, promise = "raw file", "fdatasync at the end"

    def run(self, place, rows):
        out = {}
        for batch in BATCHES:
            path = place / f"raw-{batch}"
            parts = []
            for first in range(0, rows, batch):
                times, numbers = rows_of(first, batch)
                parts.append(np.column_stack([times.view(np.int64), numbers]).tobytes())

            def write():
                with open(path, "wb", buffering=0) as file:
                    for part in parts:
                        file.write(part)
                    os.fdatasync(file.fileno())

            out[f"ingest_{batch}"] = rows / timed(write)
        path = place / f"raw-{BATCHES[-1]}"
        out["bytes"] = path.stat().st_blocks * 512 / rows
        out["scan"] = rows / timed(lambda: np.fromfile(path, dtype=np.int64), 5)
        at = (rows // 2) * 16
        out["range_us"] = 1e6 * timed(
            lambda: np.fromfile(path, dtype=np.int64, count=2 * RANGE, offset=at), 101
        )
        return out


class DuckDb:
    """Appends from Arrow tables, with a transaction for each batch, and one table in one go."""

    name, promise = "DuckDB", "each batch committed and synced"

    def run(self, place, rows):
        import duckdb
        import pyarrow

        out = {}
        for batch in BATCHES + (rows,):
            path = place / f"duck-{batch}.db"
            database = duckdb.connect(str(path))
            database.execute("create table ticks (time timestamp_ns, value bigint)")
            parts = [
                pyarrow.table(rows_of(first, batch), names=["time", "value"])
                for first in range(0, rows, batch)
            ]

            def take(part):
                database.register("part", part)
                database.execute("insert into ticks select * from part")
                database.unregister("part")

            out["bulk" if batch == rows else f"ingest_{batch}"] = fed(parts, take)
            if batch != rows:
                database.close()
        database.execute("checkpoint")

        def arrow(query):
            return database.sql(query).to_arrow_table()

        out["scan"] = rows / timed(lambda: arrow("select * from ticks"), 5)
        low, high = range_ns(rows)
        query = (
            f"select * from ticks where time between make_timestamp_ns({low})"
            f" and make_timestamp_ns({high})"
        )
        assert arrow(query).num_rows == RANGE
        out["range_us"] = 1e6 * timed(lambda: arrow(query), 101)
        database.close()
        out["bytes"] = path.stat().st_blocks * 512 / rows
        return out


class Arctic:
    """LMDB on the local disk, appends without validation of the index."""

    name, promise = "ArcticDB", "each batch in LMDB, which syncs as it is set up"

    def run(self, place, rows):
        import arcticdb
        import pandas

        out = {}
        store = arcticdb.Arctic(f"lmdb://{place / 'arctic'}?map_size=8GB")

        def frame(first, count):
            times, numbers = rows_of(first, count)
            return pandas.DataFrame({"value": numbers}, index=pandas.DatetimeIndex(times))

        for batch in BATCHES:
            library = store.create_library(f"batch{batch}")
            parts = [frame(first, batch) for first in range(0, rows, batch)]
            library.write("ticks", parts[0])
            out[f"ingest_{batch}"] = fed(
                parts[1:], lambda part: library.append("ticks", part, validate_index=False)
            )
        library = store.create_library("bulk")
        whole = frame(0, rows)
        before = disk_bytes(place)
        out["bulk"] = rows / timed(lambda: library.write("ticks", whole))
        out["bytes"] = max(0, disk_bytes(place) - before) / rows
        out["scan"] = rows / timed(lambda: library.read("ticks").data, 5)
        span = tuple(pandas.Timestamp(end) for end in range_ns(rows))
        assert len(library.read("ticks", date_range=span).data) == RANGE
        out["range_us"] = 1e6 * timed(lambda: library.read("ticks", date_range=span).data, 101)
        return out


class QuestDb:
    """Appends by ILP over one connection of the Rust client. Reads come as Parquet and as JSON."""

    name, promise = "QuestDB", "nothing before the WAL is applied; not synced"
    http = "http://127.0.0.1:9000"

    def __init__(self, jar, peer):
        self.jar, self.peer = jar, peer

    def get(self, path, **query):
        url = f"{self.http}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.read()

    def run(self, place, rows):
        root = place / "questdb"
        root.mkdir()
        with open(place / "questdb.log", "wb") as log:
            server = subprocess.Popen(
                ["java", "-p", self.jar, "-m", "io.questdb/io.questdb.ServerMain", "-d", root],
                stdout=log, stderr=log,
            )
        try:
            return self.measure(root, rows)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()

    def measure(self, root, rows):
        for _ in range(600):
            try:
                self.get("exec", query="select 1")
                break
            except OSError:
                time.sleep(0.1)
        out = {}
        ticks = str(root / "ticks")
        times, numbers = rows_of(0, rows)
        np.column_stack([times.view(np.int64), numbers]).tofile(ticks)
        for transport, batch in [("tcp", BATCHES[0]), ("tcp", BATCHES[1]), ("http", BATCHES[1])]:
            table = f"ticks_{transport}_{batch}"
            self.get("exec", query=f"create table {table} (value long, timestamp timestamp_ns)"
                     " timestamp(timestamp) partition by hour wal")
            said = subprocess.run([self.peer, transport, table, ticks, str(batch)],
                                  check=True, capture_output=True, text=True).stdout.split()
            out[f"ingest_{batch}" if transport == "tcp" else "bulk"] = float(said[1])
        table = f"ticks_tcp_{BATCHES[1]}"
        low, high = range_ns(rows)
        query = (f"select timestamp, value from {table} where timestamp between"
                 f" cast({low} as timestamp_ns) and cast({high} as timestamp_ns)")
        answer = json.loads(self.get("exec", query=query))
        assert answer["count"] == RANGE, answer["count"]
        out["range_us"] = 1e6 * timed(lambda: self.get("exec", query=query), 101)
        out["scan"] = rows / timed(lambda: self.get("exp", query=f"select * from {table}"), 3)
        of = [path for path in (root / "db").glob(f"{table}~*")]
        columns = [p for path in of for p in path.rglob("*.d") if "wal" not in str(p)]
        out["bytes"] = sum(path.stat().st_blocks * 512 for path in columns) / rows
        return out


class Evenfall:
    """evenfall embedded in one thread. An append is acknowledged at the given level."""

    def __init__(self, program, level, has_one_under_way=False):
        self.program, self.level, self.has_one_under_way = program, level, has_one_under_way
        self.name = f"evenfall, {level}" + (", one under way" if has_one_under_way else "")
        self.promise = {"local": "each batch synced", "memory": "readable"}[level]

    def bench(self, place, *args):
        said = subprocess.run([self.program, "bench", "store", "--json", "--dir", place, *args],
                              check=True, capture_output=True, text=True).stdout
        return json.loads(said)

    def run(self, place, rows):
        out = {}
        for batch in BATCHES:
            # A window of one batch waits for each acknowledgement, as the other systems do.
            window = ["--window-bytes", str(16 * batch)] if self.has_one_under_way else []
            said = self.bench(place, "--embedded", "--no-objects", "--streams", "1", "--ack",
                              self.level, "--batch", str(batch), "--duration", "1s", *window)
            out[f"ingest_{batch}"] = said["records_per_s"]
            out["bytes"] = said["disk_bytes_per_record"]
        said = self.bench(place, "--scan", "--no-objects")["ticks_of_16_bytes"]
        out["scan"], out["range_us"] = said["scan_to_arrow_per_s"], said["range_10k_us"]
        return out


def cell(value, own, digits, is_cost=False):
    if value is None:
        return "-"
    ratio = value / own if is_cost else own / value
    return f"{value:.{digits}f} ({ratio:.2g}x)"


def print_table(results, rows):
    keys = [("ingest_1000", 1e6), ("ingest_10000", 1e6), ("bulk", 1e6), ("scan", 1e6),
            ("range_us", 1), ("bytes", 1)]
    medians = {
        name: {key: statistics.median([run[key] for run in runs]) / unit
               for key, unit in keys if key in runs[0]}
        for name, runs in results.items()
    }
    own = medians["evenfall, local"]
    print(f"{rows} rows; in brackets how many times better evenfall, local, is (below 1: worse)\n")
    print("| | M rows/s, batch 1,000 | batch 10,000 | in one go | scan, M rows/s "
          "| 10k range, us | bytes a row |\n|---|---|---|---|---|---|---|")
    for name, of in medians.items():
        cells = [
            cell(of.get("ingest_1000"), own["ingest_1000"], 2),
            cell(of.get("ingest_10000"), own["ingest_10000"], 2),
            cell(of.get("bulk"), own["ingest_10000"], 2),
            cell(of.get("scan"), own["scan"], 1),
            cell(of.get("range_us"), own["range_us"], 0, is_cost=True),
            cell(of.get("bytes"), own["bytes"], 2, is_cost=True),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--questdb-jar")
    parser.add_argument("--questdb-peer")
    parser.add_argument("--dir", default=".")
    args = parser.parse_args()
    program = str(pathlib.Path(args.program).resolve())
    systems = [Evenfall(program, "local"), Evenfall(program, "local", has_one_under_way=True),
               Evenfall(program, "memory"), Raw(), DuckDb()]
    try:
        import arcticdb  # noqa: F401
        systems.append(Arctic())
    except ImportError as error:
        print(f"ArcticDB is left out: {error}")
    if args.questdb_jar and args.questdb_peer:
        systems.append(QuestDb(args.questdb_jar, args.questdb_peer))
    else:
        print("QuestDB is left out: give --questdb-jar and --questdb-peer")
    results = {}
    for _ in range(args.rounds):
        for system in systems:
            place = pathlib.Path(tempfile.mkdtemp(prefix="store-peers-", dir=args.dir))
            try:
                results.setdefault(system.name, []).append(system.run(place, args.rows))
            finally:
                shutil.rmtree(place, ignore_errors=True)
    print_table(results, args.rows)
    for system in systems:
        print(f"\n{system.name}: acknowledges with \"{system.promise}\".", end="")
    print()


if __name__ == "__main__":
    main()
