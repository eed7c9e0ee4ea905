"""What other programs read in the sealed chunks of a recording, beside the feed.

The chunks are read as they are, by DuckDB, Polars and pyarrow alone. The feed is read by a few lines
that share nothing with evenfall. Every value of every message in a chunk must be equal. A stream is
one file, `NAME.STREAM.messages`, whose chunks have a row for each message, and state version 3.
"""

import datetime
import json
import struct
import sys

import duckdb
import polars
import pyarrow
import pyarrow.parquet

COLUMNS = (
    "seq", "time", "type", "locate", "order_ref", "new_order_ref", "side", "shares", "symbol",
    "price", "match",
)
DATAGRAM = ["seq", "time", "length", "rest"]
# Where the values of an ITCH message are: offset and width.
ITCH = {
    "A": {"order_ref": (11, 8), "side": (19, 1), "shares": (20, 4), "symbol": (24, 8), "price": (32, 4)},
    "E": {"order_ref": (11, 8), "shares": (19, 4), "match": (23, 8)},
    "C": {"order_ref": (11, 8), "shares": (19, 4), "match": (23, 8), "price": (32, 4)},
    "X": {"order_ref": (11, 8), "shares": (19, 4)},
    "D": {"order_ref": (11, 8)},
    "U": {"order_ref": (11, 8), "new_order_ref": (19, 8), "shares": (27, 4), "price": (31, 4)},
    "P": {
        "order_ref": (11, 8), "side": (19, 1), "shares": (20, 4), "symbol": (24, 8),
        "price": (32, 4), "match": (36, 8),
    },
}
ITCH["F"] = ITCH["A"]
# The feed of one day is so short that it fills no chunk. It is repeated so often, so much later.
PASSES, LATER_NS = 4, 300_000_000_000
# The capture spans five minutes.
CAPTURE_LATER_NS = 2 * LATER_NS


def midnight(date):
    """The day's first nanosecond, as the venue's clock counts."""
    return int(datetime.datetime.fromisoformat(date + "T00:00:00+00:00").timestamp()) * 10**9


def repeated(messages):
    """The messages, several times, later each time."""
    for turn in range(PASSES):
        for message in messages:
            ns = int.from_bytes(message[5:11], "big") + turn * LATER_NS
            yield message[:5] + ns.to_bytes(6, "big") + message[11:]


def itch_row(seq, message, day):
    row = dict.fromkeys(COLUMNS)
    kind = chr(message[0])
    row |= {"seq": seq, "type": kind, "locate": int.from_bytes(message[1:3], "big")}
    row["time"] = day + int.from_bytes(message[5:11], "big")
    for name, (at, width) in ITCH[kind].items():
        value = message[at : at + width]
        is_text = name in ("side", "symbol")
        row[name] = value.decode().rstrip() if is_text else int.from_bytes(value, "big")
    return tuple(row.values())


def lobster_row(seq, line, day):
    seconds, kind, order, shares, price, side = line.decode().split(",")
    whole, _, part = seconds.partition(".")
    ns = int(whole) * 10**9 + int(part.ljust(9, "0"))
    side = "B" if side == "1" else "S"
    return (seq, day + ns, kind, None, int(order), None, side, int(shares), None, int(price), None)


def by_duckdb(chunk):
    columns = ", ".join(
        {"time": "epoch_ns(time)", "price": "(price * 10000)::BIGINT"}.get(name, f'"{name}"')
        for name in COLUMNS
    )
    return duckdb.execute(f"SELECT {columns}, length FROM read_parquet(?)", [str(chunk)]).fetchall()


def by_polars(chunk):
    table = polars.read_parquet(chunk, columns=[*COLUMNS, "length"])
    price = (polars.col("price").cast(polars.Decimal(18, 4)) * 10_000).cast(polars.Int64)
    return table.with_columns(polars.col("time").cast(polars.Int64), price).rows()


def by_pyarrow(chunk):
    table = pyarrow.parquet.read_table(chunk, columns=[*COLUMNS, "length"])
    values = {name: table.column(name) for name in table.column_names}
    values["time"] = values["time"].cast(pyarrow.int64())
    values = {name: column.to_pylist() for name, column in values.items()}
    values["price"] = [price and int(price.scaleb(4)) for price in values["price"]]
    return list(zip(*(values[name] for name in (*COLUMNS, "length"))))


def sealed_chunks(run, store, feed):
    """Records a feed, closes the store, and gives its sealed chunks, which are of one file."""
    run("append", str(store), "aapl", "--feed", str(feed))
    run("compact", str(store))
    run("verify", str(store), "--feed", str(feed), "--name", "aapl")
    chunks = sorted(store.glob("D-*.parquet"))
    assert chunks, f"{feed.name} fills no chunk"
    footers = [pyarrow.parquet.read_metadata(chunk).metadata for chunk in chunks]
    abouts = [json.loads(value) for footer in footers for value in footer.values()]
    versions = {about["version"] for about in abouts if "version" in about}
    assert versions == {3}, f"chunks of the versions {versions}"
    return chunks


def told(chunks, count, of, what):
    """Prints what was compared."""
    size = sum(chunk.stat().st_size for chunk in chunks)
    print(f"  {count} of {of} messages in {len(chunks)} sealed chunks, {size / count:.2f} bytes each:")
    print(f"  {what} equal in DuckDB, Polars and pyarrow")


def check_chunks(run, feed, work, messages, is_lobster):
    """Records the messages, seals them, and compares the chunks with them."""
    store = work / "sealed"
    if is_lobster:
        rows = [lobster_row(seq, line, midnight("2012-06-21")) for seq, line in enumerate(messages, 1)]
    else:
        messages = list(repeated(messages))
        feed = work / "repeated_20191230.itch50"
        feed.write_bytes(b"".join(struct.pack(">H", len(one)) + one for one in messages))
        rows = [itch_row(seq, one, midnight("2019-12-30")) for seq, one in enumerate(messages, 1)]
    chunks = sealed_chunks(run, store, feed)
    count = 0
    for chunk in chunks:
        for read in (by_duckdb, by_polars, by_pyarrow):
            found = read(chunk)
            assert all(row[-1] is None for row in found), f"{read.__name__}: messages stayed bytes"
            for row in found:
                wanted = rows[row[0] - 1]
                assert row[:-1] == wanted, f"{read.__name__} of {chunk.name}:\n{row}\n{wanted}"
        count += len(found)
    told(chunks, count, len(rows), "every value")


def captured(content):
    """The times and the frames of a capture in PCAP Next Generation."""
    at = 0
    while at < len(content):
        kind, length = struct.unpack_from("<II", content, at)
        if kind == 6:
            high, low, size = struct.unpack_from("<III", content, at + 12)
            yield high << 32 | low, bytearray(content[at + 28 : at + 28 + size])
        at += length


def payload(frame):
    """Where the datagram in an Ethernet frame begins and ends."""
    udp = 14 + 4 * (frame[14] & 15)
    return udp + 8, udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")


def repeated_capture(content):
    """A capture of CME, several times with later numbers and times, and its datagrams.

    Both sides send each datagram. The first copy of each is recorded.
    """
    frames = list(captured(content))
    numbers = [int.from_bytes(frame[payload(frame)[0] :][:4], "little") for _, frame in frames]
    span = max(numbers) - min(numbers) + 1
    # Classic PCAP with nanoseconds, frames of Ethernet.
    file, datagrams = bytearray(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 16, 1)), {}
    for turn in range(PASSES):
        for (time_ns, frame), number in zip(frames, numbers):
            begin, end = payload(frame)
            sent = int.from_bytes(frame[begin + 4 : begin + 12], "little")
            later = struct.pack("<IQ", number + turn * span, sent + (turn > 0) * CAPTURE_LATER_NS)
            frame[begin : begin + 12] = later
            seconds, ns = divmod(time_ns + turn * CAPTURE_LATER_NS, 10**9)
            file += struct.pack("<IIII", seconds, ns, len(frame), len(frame)) + frame
            datagrams.setdefault(number + turn * span, bytes(frame[begin:end]))
    return bytes(file), list(datagrams.values())


def check_capture(run, feed, work):
    """Records a capture, seals it, and compares the datagrams in the chunks."""
    feed_again = work / "repeated.pcap"
    content, datagrams = repeated_capture(feed.read_bytes())
    feed_again.write_bytes(content)
    chunks = sealed_chunks(run, work / "sealed", feed_again)
    count = 0
    for chunk in chunks:
        found = {
            "DuckDB": duckdb.execute(
                "SELECT seq, epoch_ns(time), length, rest FROM read_parquet(?)", [str(chunk)]
            ).fetchall(),
            "Polars": polars.read_parquet(chunk, columns=DATAGRAM)
            .with_columns(polars.col("time").cast(polars.Int64))
            .rows(),
        }
        table = pyarrow.parquet.read_table(chunk, columns=DATAGRAM)
        columns = [table.column("seq"), table.column("time").cast(pyarrow.int64())]
        columns += [table.column("length"), table.column("rest")]
        found["pyarrow"] = list(zip(*(column.to_pylist() for column in columns)))
        first, rows = found["pyarrow"][0][0], table.num_rows
        # The time of a datagram is the time at which the venue sent it.
        wanted = [
            (seq, int.from_bytes(datagram[4:12], "little"), len(datagram), datagram)
            for seq, datagram in enumerate(datagrams[first - 1 : first - 1 + rows], first)
        ]
        for name, values in found.items():
            assert values == wanted, f"{name} reads other datagrams in {chunk.name}"
        count += rows
    print(f"{feed.name}, {PASSES} times:")
    told(chunks, count, len(datagrams), "every datagram")


if __name__ == "__main__":
    sys.exit("check.py calls this")
