"""Rows of users: whatever package made a frame, the table takes it whole or says what is wrong."""

import datetime
import decimal
import threading

import duckdb
import pandas
import polars
import pyarrow

import evenfall as ev

from workplace import Case, address, answers, interrupted, wait_until

#: 2025-11-29 12:00 UTC.
NOON_NS = 1_764_417_600_000_000_000
FIELDS = {"time": "time", "number": "u32", "price": "price", "weight": "f64", "venue": "bytes:4"}


def frame(rows, begin=NOON_NS):
    """So many rows, 1 us apart."""
    numbers = range(rows)
    times = polars.Series([begin + 1_000 * n for n in numbers], dtype=polars.Int64)
    return polars.DataFrame(
        {
            "time": times.cast(polars.Datetime("ns", "UTC")),
            "number": polars.Series(numbers, dtype=polars.UInt32),
            "price": [decimal.Decimal(1_000_000 + n).scaleb(-4) for n in numbers],
            "weight": [n / 2 for n in numbers],
            "venue": ["XNAS", "ARC"] * (rows // 2) + ["IEX"] * (rows % 2),
        }
    )


class Appended(Case):
    def setUp(self):
        self.ticks = ev.open(self.directory / self.id().rsplit(".", 1)[-1])

    def table(self, **options):
        return self.ticks.create("trades", FIELDS, **options)

    def test_four_packages_append_the_same_rows(self):
        parts = frame(30_000), frame(1_000, NOON_NS + 10**9)
        table = self.table()
        self.assertEqual(table.append(parts[0]), 30_000)
        self.assertEqual(self.ticks.append("trades", parts[1].to_arrow()), 1_000)
        wanted = polars.concat(parts)
        panda = frame(10, NOON_NS + 2 * 10**9).to_pandas()
        self.assertEqual(table.append(panda), 10)
        panda["time"] += pandas.Timedelta(1, "s")
        self.assertEqual(table.append(duckdb.sql("select * from panda order by time limit 5")), 5)
        self.assertEqual(table.append(frame(1).head(0)), 0)
        got = table.rows().polars()
        self.assertEqual(got.height, 31_015)
        first = got.head(31_000)
        wanted = wanted.with_columns(polars.col("price").cast(first["price"].dtype))
        self.assertTrue(first.drop("venue").equals(wanted.drop("venue")))
        self.assertEqual(first["venue"].to_list()[:2], [b"XNAS", b"ARC "])
        # What a table gives, another table takes; of one directory after it was read.
        copy = self.ticks.create("copy", FIELDS)
        self.assertEqual(copy.append(table.rows().collect()), 31_015)
        self.assertTrue(copy.rows().polars().equals(got))

    def test_floats_categories_and_other_times_are_read_by_their_values(self):
        rows = pyarrow.table(
            {
                "venue": pyarrow.array(["XNAS", "XNAS"]).dictionary_encode(),
                "weight": pyarrow.array([1, 2], pyarrow.int64()),
                "price": pyarrow.array([101.1, 0.3], pyarrow.float64()),
                "number": pyarrow.array([7, 8], pyarrow.int16()),
                "time": pyarrow.array([NOON_NS // 1000, NOON_NS // 1000], pyarrow.timestamp("us")),
            }
        )
        table = self.table()
        self.assertEqual(table.append(rows), 2)
        got = table.rows().arrow().to_pylist()
        self.assertEqual([row["price"] for row in got], [decimal.Decimal("101.1"), decimal.Decimal("0.3")])
        self.assertEqual(got[0]["time"].to_pydatetime().hour, 12)
        self.assertEqual([row["number"] for row in got], [7, 8])

    def test_a_mistake_names_its_column_and_row_and_the_rows_before_it_are_kept(self):
        table, good = self.table(), frame(20_000)
        late = frame(20_000, NOON_NS + 10**9).with_row_index().with_columns(
            time=polars.when(polars.col("index") == 15_000)
            .then(polars.lit(datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)))
            .otherwise(polars.col("time"))
            .cast(polars.Datetime("ns", "UTC"))
        ).drop("index")
        missing = good.with_columns(
            number=polars.when(polars.col("number") != 12_345).then(polars.col("number"))
        )
        for rows, words, kept in [
            (good.drop("price"), "no column price: the fields are time,number,price", 0),
            (good.with_columns(side=polars.lit("B")), "no field side: the fields are time", 0),
            (good.with_columns(polars.col("price").cast(str)), "column price is of type Utf8", 0),
            (good.to_pandas().sample(9, random_state=1), "reset_index(drop=True)", 0),
            (missing, "row 12345: number: a missing value", 12_345),
            (good.with_columns(venue=polars.lit("NASDAQ")), 'row 0: venue: "NASDAQ" has 6 bytes', 0),
            (late, "row 15000: record 0 of the batch has time 1577836800000000000 ns", 15_000),
            ([1, 2, 3], "list is no Arrow stream", None),
        ]:
            before = table.rows().count()
            with self.assertRaises(ev.SettingsError, msg=words) as raised:
                table.append(rows)
            self.assertIn(words, str(raised.exception))
            self.assertEqual(raised.exception.rows_kept, kept)
            if kept is not None:
                self.assertIn(f"{kept} rows are appended" if kept else "no row", str(raised.exception))
            self.assertEqual(table.rows().count(), before + (kept or 0), words)

    def test_names_and_schemas_that_cannot_be_are_refused(self):
        table = self.table()
        self.assertEqual(self.table().name, table.name)
        for call, kind, words in [
            (lambda: self.ticks.append("trade", frame(1)), ev.NotFoundError, "nearest are trades"),
            (lambda: self.ticks.append("trade", frame(1)), ev.NotFoundError, "Store.create"),
            (lambda: table.append(frame(1), ack="disk"), ev.SettingsError, "disk is no level"),
            (lambda: table.append(frame(1), ack="replica"), ev.StoreError, "second"),
            (lambda: self.ticks.create("x", {"price": "price"}), ev.SettingsError, "the time"),
            (lambda: self.ticks.create("x", {"time": "time", "n": "int"}), ev.SettingsError, "u8, u16"),
            (lambda: self.ticks.create("a\nb", FIELDS), ev.SettingsError, "control characters"),
            (lambda: self.ticks.create("trades", {"time": "time"}), ev.StoreError, "another schema"),
            (lambda: ev.open("nowhere").append("x", frame(1)), ev.NotFoundError, "no such directory"),
        ]:
            with self.assertRaises(kind) as raised:
                call()
            self.assertIn(words, str(raised.exception))

    def test_a_window_sorts_late_rows_and_tells_of_rows_that_came_too_late(self):
        table = self.table(window="1ms", sequence="number")
        rows = frame(1_000)
        turned = rows.with_columns(polars.col("time").reverse(), polars.col("number").reverse())
        self.assertEqual(table.append(turned), 1_000)
        self.assertTrue(table.rows().polars()["time"].equals(rows["time"]))
        late = polars.concat([frame(1, NOON_NS + 10**10), frame(1, NOON_NS + 10**10 + 10**8)])
        late = polars.concat([late, frame(1, NOON_NS + 10**9)])
        with self.assertRaisesRegex(ev.SettingsError, "1 came later.*row 2 of") as raised:
            table.append(late)
        self.assertEqual(raised.exception.rows_kept, 2)

    def test_a_server_takes_the_same_rows_and_says_the_same(self):
        place, directory = address(), self.directory / "served"
        ev.open(directory).create("trades", FIELDS)
        server = self.start("store", "serve", directory, "--listen", place)
        wait_until(lambda: answers(place))
        served = ev.open(f"tcp://{place}")
        self.assertEqual(served["trades"].append(frame(20_000)), 20_000)
        back = polars.concat([frame(10, NOON_NS + 10**9), frame(10, NOON_NS)])
        with self.assertRaisesRegex(ev.SettingsError, "row 10: .*10 rows are appended"):
            served.append("trades", back)
        other = served.create("other", {"time": "time", "number": "u64"})
        self.assertEqual(other.append(frame(3).select("number", "time")), 3)
        self.assertEqual(served["trades"].rows().count(), 20_010)
        # A server that dies midway: the error has the rows that it acknowledged.
        rows = Paused(frame(100_000, NOON_NS + 10**10).to_arrow(), 50_000, server)
        with self.assertRaises(ev.StoreError) as raised:
            served["trades"].append(rows)
        kept = raised.exception.rows_kept
        self.assertGreater(kept, 0)
        self.assertIn(f"{kept} rows are appended", str(raised.exception))

    def test_ctrl_c_ends_an_append_and_says_what_is_appended(self):
        table, gate = self.table(), threading.Event()

        def batches():
            yield from frame(20_000).to_arrow().to_batches()
            gate.wait()

        schema = frame(1).to_arrow().schema
        reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
        raised = []

        def append():
            try:
                table.append(reader)
            except KeyboardInterrupt as error:
                raised.append(error)
                raise

        self.assertLess(interrupted(append, after=1.0), 2.0)
        self.assertIn("rows are appended", raised[0].__notes__[0])
        gate.set()
        wait_until(lambda: self.can_read(table))

    def can_read(self, table):
        try:
            return table.rows().count() >= 0
        except ev.StoreError:
            return False


class Paused:
    """A table in small batches, behind one of which a server is killed."""

    def __init__(self, table, rows, server):
        self.table, self.rows, self.server = table, rows, server

    def batches(self):
        seen = 0
        for batch in self.table.to_batches(max_chunksize=1_000):
            yield batch
            seen += batch.num_rows
            if seen == self.rows:
                self.server.kill()
                self.server.wait()

    def __arrow_c_stream__(self, requested_schema=None):
        reader = pyarrow.RecordBatchReader.from_batches(self.table.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)
