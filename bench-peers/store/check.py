"""Checks what other programs read out of a store.

Each feed is appended to a store, exported as Parquet for DuckDB and Polars, and as Arrow for
pyarrow. This script also reads the feed by a few lines that share nothing with evenfall. All
readings must have equal counts of messages by type, sums of shares and prices, and first and last
times. The script then rebuilds the feed from the Parquet file, and compares it byte for byte. The
Parquet file is also read out of replicated files over WebHDFS, and so is a store whose objects are
there. At last the sealed chunks of the recording are read as they are (recordings.py). Of a capture,
only the sealed chunks are read.
"""

import collections
import contextlib
import io
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from decimal import Decimal

import duckdb
import fsspec
import polars
import pyarrow
import pyarrow.compute

from recordings import check_capture, check_chunks

# Where shares (offset, width) and price (offset) are, by type letter of ITCH 5.0.
SHARES = {
    "A": (20, 4), "F": (20, 4), "E": (19, 4), "C": (19, 4), "X": (19, 4),
    "U": (27, 4), "P": (20, 4), "Q": (11, 8),
}
PRICE = {"A": 32, "F": 32, "C": 32, "U": 31, "P": 32, "Q": 27}


class Facts:
    """Counts and sums, which must be equal in all readings of a feed."""

    def __init__(self):
        self.types = collections.Counter()
        self.shares = 0
        self.price = Decimal(0)
        self.first = self.last = None

    def add(self, kind, event_ns, shares, price):
        self.types[kind] += 1
        self.shares += shares
        self.price += Decimal(price) / 10_000
        self.first = event_ns if self.first is None else min(self.first, event_ns)
        self.last = event_ns if self.last is None else max(self.last, event_ns)

    def all(self):
        return (dict(self.types), self.shares, self.price, self.first, self.last)


def itch(content):
    """The messages of a file with 2-byte lengths, and their facts."""
    facts, messages, at = Facts(), [], 0
    while at + 2 <= len(content):
        (length,) = struct.unpack_from(">H", content, at)
        if length == 0:
            break
        message = content[at + 2 : at + 2 + length]
        at += 2 + length
        messages.append(message)
        kind = chr(message[0])
        shares = price = 0
        if kind in SHARES:
            offset, width = SHARES[kind]
            shares = int.from_bytes(message[offset : offset + width], "big")
        if kind in PRICE:
            price = int.from_bytes(message[PRICE[kind] : PRICE[kind] + 4], "big")
        facts.add(kind, int.from_bytes(message[5:11], "big"), shares, price)
    return messages, facts


def lobster(content):
    """The lines of the message file in a LOBSTER archive, and their facts."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    (name,) = [name for name in archive.namelist() if "_message_" in name]
    lines, facts = archive.read(name).splitlines(), Facts()
    for line in lines:
        seconds, kind, _, shares, price, _ = line.decode().split(",")
        facts.add(kind, int(Decimal(seconds) * 1_000_000_000), int(shares), int(price))
    return lines, facts


SUMS = """select coalesce(sum(shares), 0), coalesce(sum(price), 0), min(event_ns), max(event_ns)
          from read_parquet(?)"""


def by_duckdb(path):
    types = duckdb.execute(
        "select type, count(*) from read_parquet(?) group by type", [path]
    ).fetchall()
    shares, price, first, last = duckdb.execute(SUMS, [path]).fetchone()
    return (dict(types), int(shares), Decimal(price), first, last)


def by_polars(path):
    table = polars.read_parquet(path)
    types = dict(table.group_by("type").len().iter_rows())
    price = table["price"].sum()
    event = table["event_ns"]
    return (types, table["shares"].sum(), Decimal(price), event.min(), event.max())


def by_pyarrow(program, store, *more):
    command = [program, "store", "read", str(store), *more, "aapl", "--format", "arrow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        table = pyarrow.ipc.open_stream(reading.stdout).read_all()
    assert reading.returncode == 0
    types = {row["values"]: row["counts"] for row in table["type"].value_counts().to_pylist()}
    event = pyarrow.compute.min_max(table["event_ns"]).as_py()
    sums = [pyarrow.compute.sum(table[name]).as_py() or 0 for name in ("shares", "price")]
    return (types, sums[0], Decimal(sums[1]), event["min"], event["max"])


def free_ports(count):
    """The first of so many ports that are free one after the other."""
    while True:
        sockets = [socket.socket() for _ in range(count)]
        try:
            sockets[0].bind(("127.0.0.1", 0))
            first = sockets[0].getsockname()[1]
            for at, other in enumerate(sockets[1:], 1):
                other.bind(("127.0.0.1", first + at))
            return first
        except OSError:
            pass
        finally:
            for one in sockets:
                one.close()


@contextlib.contextmanager
def servers(program, work):
    """Replicated files on this machine; nothing when the program has none, and ends at once."""
    port = free_ports(3)
    at = f"127.0.0.1:{port}"
    words = ["run", "files", "--local", "2", "--webhdfs", at, "--dir", str(work / "files")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([program, *words], **quiet)
    is_there = False
    while not is_there and running.poll() is None:
        with socket.socket() as tried:
            is_there = tried.connect_ex(("127.0.0.1", port)) == 0
        time.sleep(0.1)
    try:
        yield at if is_there else None
    finally:
        running.terminate()
        running.wait()


def check_files(program, feed, work, path, facts, at):
    """The same Parquet file out of replicated files, and a recording whose objects are there."""
    put = [program, "files", "put", path, "/parquet/aapl.parquet", "--webhdfs", at]
    for attempt in range(100):
        # The servers may not listen yet.
        if subprocess.run(put, capture_output=attempt < 99).returncode == 0:
            break
        time.sleep(0.1)
    host, port = at.split(":")
    files = fsspec.filesystem("webhdfs", host=host, port=int(port), user="ann")
    with files.open("/parquet/aapl.parquet", "rb") as reader:
        found = by_polars(reader)
    assert found == facts, f"{feed.name} by Polars over WebHDFS:\n{found}\n{facts}"
    duckdb.register_filesystem(files)
    found = by_duckdb("webhdfs:///parquet/aapl.parquet")
    duckdb.unregister_filesystem("webhdfs")
    assert found == facts, f"{feed.name} by DuckDB over WebHDFS:\n{found}\n{facts}"
    store, objects = work / "tiered", f"files://{at}/ticks"
    words = ["store", "append", str(store), "aapl", "--feed", str(feed), "--objects", objects]
    subprocess.run([program, *words], check=True, stdout=sys.stderr)
    shutil.rmtree(store)
    found = by_pyarrow(program, objects, "--objects")
    assert found == facts, f"{feed.name} out of objects in files:\n{found}\n{facts}"
    print("  equal over WebHDFS too, and out of a store whose objects are replicated files")


def check(program, feed, work):
    run = lambda *words: subprocess.run([program, "store", *words], check=True, stdout=sys.stderr)
    if feed.suffix == ".pcap":
        return check_capture(run, feed, work)
    content = feed.read_bytes()
    is_lobster = feed.suffix == ".zip"
    messages, facts = (lobster if is_lobster else itch)(content)
    store, path = work / "store", str(work / "aapl.parquet")
    run("append", str(store), "aapl", "--feed", str(feed))
    run("verify", str(store), "--feed", str(feed), "--name", "aapl")
    run("export", str(store), "aapl", "--out", path)
    for name, found in (
        ("DuckDB", by_duckdb(path)),
        ("Polars", by_polars(path)),
        ("pyarrow", by_pyarrow(program, store)),
    ):
        assert found == facts.all(), f"{feed.name} by {name}:\n{found}\n{facts.all()}"
    rows = duckdb.execute("select message from read_parquet(?) order by number", [path]).fetchall()
    assert [row[0] for row in rows] == messages, f"{feed.name}: messages differ"
    if is_lobster:
        named = duckdb.execute("select distinct symbol from read_parquet(?)", [path]).fetchall()
        assert named == [("AAPL",)], f"{feed.name}: symbols {named}"
    else:
        again = b"".join(struct.pack(">H", len(row[0])) + row[0] for row in rows)
        assert content in (again, again + b"\0\0"), f"{feed.name}: the file differs"
    types, shares, price, _, _ = facts.all()
    print(f"{feed.name}: {sum(types.values())} messages, {shares} shares, prices sum to {price}:")
    versions = f"DuckDB {duckdb.__version__}, Polars {polars.__version__}"
    print(f"  equal in {versions} and pyarrow {pyarrow.__version__}, bytes too")
    check_chunks(run, feed, work, messages, is_lobster)
    with servers(program, work) as at:
        if at is None:
            print("  skipped: replicated files are not in this build (feature files)")
        else:
            check_files(program, feed, work, path, facts.all(), at)


def main():
    program, *feeds = sys.argv[1:]
    for feed in feeds:
        with tempfile.TemporaryDirectory() as work:
            check(program, pathlib.Path(feed), pathlib.Path(work))


if __name__ == "__main__":
    main()
