"""Rates of the package, for docs/results/people.md. No test: it prints figures.

    PYTHONPATH=PACKAGE python apps/python/tests/rates.py [MESSAGES] [RUST_SUBSCRIBER]

RUST_SUBSCRIBER is the example `batches` of the crate evenfall, beside which Python is measured. CPU
seconds are those of the subscriber's process, its start and its imports too, less those of a process
that gets no message.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import polars

import evenfall as ev

from workplace import address, program

READERS = {
    "python, batches": "for batch in feed.batches(): pass",
    "python, batches into polars": "for batch in feed.batches(): polars.DataFrame(batch)",
    "python, one by one": "for message in feed: pass",
}
READER = """
import sys, evenfall, polars
with evenfall.subscribe(root=sys.argv[1], address=sys.argv[2], id=7) as feed:
    {}
    assert feed.lost == 0, feed
"""


def run(command, messages):
    """CPU seconds of a subscriber to so many messages of 40 bytes."""
    root, desk = address(), address()
    reader = subprocess.Popen([*command, root, desk, "7"], stdout=subprocess.DEVNULL)
    publisher = ev.publish(root, {7: desk})
    for _ in range(messages):
        publisher.publish(b"x" * 40)
    publisher.finish()
    _, status, used = os.wait4(reader.pid, 0)
    assert status == 0, command
    return used.ru_utime + used.ru_stime


def feeds(messages, rust):
    commands = {name: [sys.executable, "-c", READER.format(b)] for name, b in READERS.items()}
    if rust:
        commands["rust, batches"] = [rust]
    for name, command in commands.items():
        cpu = [run(command, messages) - run(command, 1) for _ in range(3)]
        print(f"{name}: {statistics.median(cpu) / messages * 1e6:.2f} us of CPU a message")


def rows(messages):
    with tempfile.TemporaryDirectory() as directory:
        feed = pathlib.Path(directory) / "20191230.itch50"
        program("feed", "make", feed, "--messages", messages)
        day = ev.open(pathlib.Path(directory) / "ticks").record("day", feed)
        for name, read in {
            "counted by Rust": lambda: day.messages().count(),
            "into polars": lambda: day.messages().polars().height,
            "into pandas": lambda: len(day.messages().pandas()),
            "trades into polars": lambda: day.trades().polars().height,
        }.items():
            took = []
            for _ in range(3):
                began = time.process_time()
                read()
                took.append(time.process_time() - began)
            print(f"{name}: {statistics.median(took) / messages * 1e6:.2f} us of CPU a message")


def appends(rows):
    """Seconds and CPU seconds of an append of so many rows of 32 bytes, by where they are then."""
    begin, count = 1_764_417_600_000_000_000, range(rows)
    frame = polars.DataFrame(
        {
            "time": polars.Series([begin + 1_000 * n for n in count]).cast(polars.Datetime("ns", "UTC")),
            "number": polars.Series(count, dtype=polars.UInt64),
            "price": polars.Series([n % 9_000 / 4 for n in count]),
            "symbol": ["AAPL"] * rows,
        }
    )
    fields = {"time": "time", "number": "u64", "price": "price", "symbol": "bytes:8"}
    with tempfile.TemporaryDirectory() as directory:
        for ack in ("local", "memory"):
            table = ev.open(pathlib.Path(directory) / ack).create("t", fields)
            began, used = time.monotonic(), time.process_time()
            assert table.append(frame, ack=ack) == rows
            took, used = time.monotonic() - began, time.process_time() - used
            print(f"append, {ack}: {rows / took / 1e6:.2f} M rows/s, {used / rows * 1e6:.2f} us of CPU a row")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    rows(count)
    appends(count)
    feeds(count, sys.argv[2] if len(sys.argv) > 2 else None)
