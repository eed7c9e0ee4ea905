"""Answers the questions of questions.sql by DuckDB, and compares evenfall's answers with them.

    python questions.py FEED QUESTIONS ANSWERS

FEED is a file of ITCH 5.0 with a two-byte length in front of each message, QUESTIONS the file of
statements, and ANSWERS a directory with evenfall's answer to question N as N.arrow. A question
without an answer is passed over. The tables that DuckDB reads are made here, by a reader and a book
that share nothing with evenfall's.

A line of each question that differs is printed, and the exit code is 1 then.
"""

import math
import pathlib
import struct
import sys
from datetime import datetime, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import duckdb
import pyarrow
import pyarrow.ipc

DAY = datetime(2019, 12, 30, tzinfo=ZoneInfo("America/New_York"))
MIDNIGHT_UTC_NS = int(DAY.timestamp()) * 1_000_000_000
MIDNIGHT_WALL_NS = int(datetime(2019, 12, 30, tzinfo=timezone.utc).timestamp()) * 1_000_000_000

# Moments at which questions ask for the whole book, in nanoseconds since midnight.
DEPTH_TIMES = [
    (9 * 3600 + 36 * 60) * 1_000_000_000,
    (9 * 3600 + 37 * 60 + 30) * 1_000_000_000 + 123_456_789,
    (9 * 3600 + 39 * 60) * 1_000_000_000,
]


def number(raw):
    return int.from_bytes(raw, "big")


def dollars(units):
    return None if units is None else Decimal(units).scaleb(-4)


def read_messages(path):
    """Each message of the feed as a dictionary. The offsets are those of Nasdaq's specification."""
    raw = pathlib.Path(path).read_bytes()
    at, seq, names, rows = 0, 0, {}, []
    while at < len(raw):
        (length,) = struct.unpack_from(">H", raw, at)
        m = raw[at + 2 : at + 2 + length]
        at, seq = at + 2 + length, seq + 1
        kind = chr(m[0])
        row = dict.fromkeys(
            ["order_ref", "new_order_ref", "side", "shares", "symbol", "price", "match"]
        )
        row |= {"seq": seq, "type": kind, "locate": number(m[1:3]), "ts": number(m[5:11])}
        named = {"A": 24, "F": 24, "P": 24, "R": 11, "H": 11, "Y": 11, "L": 15, "J": 11, "K": 11, "h": 11}
        named |= {"Q": 19, "I": 28, "N": 11}
        if kind in named:
            names[row["locate"]] = m[named[kind] : named[kind] + 8].decode().strip()
        if kind in "AFECXDUP":
            row["order_ref"] = number(m[11:19]) or None
        if kind in "AFP":
            row |= {"side": chr(m[19]), "shares": number(m[20:24]), "price": number(m[32:36])}
        if kind == "P":
            row["match"] = number(m[36:44])
        if kind in "EC":
            row |= {"shares": number(m[19:23]), "match": number(m[23:31])}
        if kind == "C":
            row |= {"printable": chr(m[31]) == "Y", "price": number(m[32:36])}
        if kind == "X":
            row["shares"] = number(m[19:23])
        if kind == "U":
            row["new_order_ref"] = number(m[19:27])
            row |= {"shares": number(m[27:31]), "price": number(m[31:35])}
        row["symbol"] = names.get(row["locate"])
        rows.append(row)
    return rows


class Book:
    """All orders of one security, and nothing else: every question looks at all prices."""

    def __init__(self):
        self.orders = {}
        self.sides = {"B": {}, "S": {}}

    def change(self, side, price, shares, orders):
        if side is None:
            return
        level = self.sides[side].setdefault(price, [0, 0])
        level[0] += shares
        level[1] += orders
        if level[1] == 0:
            del self.sides[side][price]

    def add(self, reference, side, price, shares):
        self.orders[reference] = (side, price, shares)
        self.change(side, price, shares, 1)

    def reduce(self, reference, by):
        order = self.orders.get(reference)
        if order is None:
            return None
        side, price, shares = order
        left = max(shares - by, 0)
        self.change(side, price, left - shares, 0 if left else -1)
        if left:
            self.orders[reference] = (side, price, left)
        else:
            del self.orders[reference]
        return order

    def top(self):
        bids, asks = self.sides["B"], self.sides["S"]
        bid = max(bids) if bids else None
        ask = min(asks) if asks else None
        return (bid, bids[bid][0] if bids else None, ask, asks[ask][0] if asks else None)

    def levels(self):
        for side, best_first in (("B", True), ("S", False)):
            prices = sorted(self.sides[side], reverse=best_first)
            for level, price in enumerate(prices, 1):
                size, orders = self.sides[side][price]
                yield {"side": side, "level": level, "price": dollars(price), "size": size, "orders": orders}


def follow(messages):
    """Trades, quotes and the whole books of DEPTH_TIMES."""
    books, trades, quotes, depth, last, names = {}, [], [], [], {}, {}
    waiting = list(DEPTH_TIMES)
    for at, m in enumerate(messages):
        while waiting and m["ts"] > waiting[0]:
            moment = waiting.pop(0)
            for locate, book in books.items():
                depth += [row | {"at": moment} for row in book.levels()]
        book = books.setdefault(m["locate"], Book())
        names[m["locate"]] = m["symbol"]
        kind, reference, shares = m["type"], m["order_ref"], m["shares"]
        if kind in "AF":
            book.add(reference, m["side"], m["price"], shares)
        elif kind == "X":
            book.reduce(reference, shares)
        elif kind == "D":
            book.reduce(reference, 1 << 60)
        elif kind == "U":
            old = book.reduce(reference, 1 << 60)
            book.add(m["new_order_ref"], old and old[0], m["price"], shares)
        elif kind in "ECP":
            order = book.reduce(reference, shares) if kind in "EC" else None
            trades.append({
                **{key: m[key] for key in ("seq", "ts", "type", "symbol", "shares", "order_ref", "match")},
                "price": dollars(m["price"] if kind in "CP" else order and order[1]),
                "side": m["side"] if kind == "P" else order and order[0],
                "printable": m.get("printable", True),
            })
        # A nanosecond ends where the next message has another time.
        if at + 1 == len(messages) or messages[at + 1]["ts"] != m["ts"]:
            for locate, book in books.items():
                top = book.top()
                if last.get(locate, (None,) * 4) != top:
                    last[locate] = top
                    quotes.append({
                        "ts": m["ts"], "symbol": names[locate],
                        "bid": dollars(top[0]), "bid_size": top[1], "ask": dollars(top[2]), "ask_size": top[3],
                    })
    return trades, quotes, depth


PRICE = pyarrow.decimal128(18, 4)
TYPES = {
    "price": PRICE, "bid": PRICE, "ask": PRICE, "locate": pyarrow.int32(), "printable": pyarrow.bool_(),
    "time": pyarrow.timestamp("ns"), "utc": pyarrow.timestamp("ns"),
    "type": pyarrow.string(), "side": pyarrow.string(), "symbol": pyarrow.string(),
}


def table(rows, columns):
    """A table of these columns, with the times of the venue and of UTC in front."""
    arrays = {}
    if "ts" in rows[0]:
        stamps = [row["ts"] for row in rows]
        arrays["time"] = pyarrow.array([MIDNIGHT_WALL_NS + ts for ts in stamps], TYPES["time"])
        arrays["utc"] = pyarrow.array([MIDNIGHT_UTC_NS + ts for ts in stamps], TYPES["utc"])
    for column in columns:
        values = [row[column] for row in rows]
        arrays[column] = pyarrow.array(values, TYPES.get(column, pyarrow.int64()))
    return pyarrow.table(arrays)


def questions(path):
    """Number, title, evenfall's statement and DuckDB's."""
    for block in pathlib.Path(path).read_text().split("\n-- question ")[1:]:
        title, _, rest = block.partition("\n")
        ours, _, theirs = rest.partition("\n-- duckdb\n")
        yield title, ours.strip(), (theirs or ours).strip()


def plain(value):
    """Values of both sides in one shape."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def differs(one, other):
    if one is None or other is None:
        return one is not other
    if isinstance(one, (int, str, bool, datetime)) and isinstance(other, (int, str, bool, datetime)):
        return one != other
    if isinstance(one, Decimal) and isinstance(other, Decimal) and one == other:
        return False
    # Where one engine has a decimal and the other a fraction, the decimal's last digit is cut.
    kinds = {type(one), type(other)}
    decimals = [value for value in (one, other) if isinstance(value, Decimal)]
    room = 10.0 ** decimals[0].as_tuple().exponent if decimals and float in kinds else 0.0
    return abs(float(one) - float(other)) > room + 1e-9 * abs(float(one))


def nanoseconds(found):
    """Timestamps as whole nanoseconds, because Python's have microseconds only."""
    for at, field in enumerate(found.schema):
        if pyarrow.types.is_timestamp(field.type):
            column = found.column(at).cast(pyarrow.timestamp("ns")).cast(pyarrow.int64())
            found = found.set_column(at, field.name, column)
    return found


def rows_of(found):
    lists = [column.to_pylist() for column in nanoseconds(found).columns]
    return [tuple(map(plain, row)) for row in zip(*lists)]


def main(feed, asked, answers):
    messages = read_messages(feed)
    trades, quotes, depth = follow(messages)
    for row in messages:
        row["price"] = dollars(row["price"])
    duck = duckdb.connect()
    duck.register("messages", table(messages, [
        "ts", "seq", "type", "locate", "order_ref", "new_order_ref", "side", "shares", "symbol", "price", "match",
    ]))
    duck.register("trades", table(trades, [
        "ts", "seq", "type", "symbol", "price", "shares", "side", "order_ref", "match", "printable",
    ]))
    duck.register("quotes", table(quotes, ["ts", "symbol", "bid", "bid_size", "ask", "ask_size"]))
    for row in depth:
        row["ts"] = row.pop("at")
    if depth:
        duck.register("depth", table(depth, ["ts", "side", "level", "price", "size", "orders"]))
    wrong, count = 0, 0
    for number_of, (title, _, sql) in enumerate(questions(asked), 1):
        answer = pathlib.Path(answers) / f"{number_of}.arrow"
        if not answer.exists():
            continue
        count += 1
        with pyarrow.ipc.open_stream(answer) as stream:
            ours = rows_of(stream.read_all())
        theirs = rows_of(duck.sql(sql).to_arrow_table())
        if not theirs and len(messages) > 10_000:
            print(f"question {number_of}, {title}: DuckDB's answer is empty, which shows nothing")
            wrong += 1
        for at, (one, other) in enumerate(zip(ours, theirs)):
            if len(one) != len(other) or any(map(differs, one, other)):
                print(f"question {number_of}, {title}: row {at}: evenfall {one}, DuckDB {other}")
                wrong += 1
                break
        else:
            if len(ours) != len(theirs):
                print(f"question {number_of}, {title}: evenfall {len(ours)} rows, DuckDB {len(theirs)}")
                wrong += 1
    print(f"{count} questions, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
