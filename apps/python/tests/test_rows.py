"""Recordings as rows: every reader gets the same, and bars equal those of another engine."""

import datetime
import decimal
import os
import signal
import threading
import unittest

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.compute as compute

import evenfall as ev

from workplace import AAPL, QUERY, Case, address, answers, interrupted, program, unless, wait_until


# The price of an execution is the price of the order that it executes, which a replacement gives a
# new number. Executions with a price of their own, trades of hidden orders and crosses state it.
BARS = """
with raw as (select * from read_parquet('{parquet}')),
orders as (
    select order_reference as reference, price from raw where type in ('A', 'F')
    union all select new_reference, price from raw where type = 'U'),
trades as (
    select time_ns, number, shares, coalesce(raw.price, orders.price) as price
    from raw left join orders on raw.type = 'E' and orders.reference = raw.order_reference
    where type in ('E', 'C', 'P', 'Q') and coalesce(printable, true))
select epoch_ns(time_ns) // {width} * {width} as begin_ns,
    first(price order by number), max(price), min(price), last(price order by number),
    sum(shares)::bigint, count(*)
from trades where price is not null group by 1 order by 1
"""


class RecordedLobster(Case):
    def test_rows_have_the_symbol_of_the_file_or_of_the_call(self):
        lines = "34200.004241176,1,7,18,5853300,1\n34201,4,7,8,5853300,1\n"
        named = self.directory / "AAPL_2012-06-21_34200000_57600000_message_1.csv"
        unnamed = self.directory / "2012-06-21.csv"
        ticks = ev.open(self.directory / "lobster")
        for name, path, said, symbol in [
            ("named", named, {}, "AAPL"),
            ("stated", unnamed, {"symbol": "MSFT"}, "MSFT"),
        ]:
            path.write_text(lines)
            day = ticks.record(name, path, **said)
            for rows in (day.messages(), day.trades(symbol), day.quotes()):
                self.assertEqual(set(rows.arrow()["symbol"].to_pylist()), {symbol})
            self.assertEqual(day.book(symbol, at="10:00").arrow()["shares"].to_pylist(), [10])
        with self.assertRaises(ev.SettingsError):
            ticks.record("wrong", unnamed, symbol="NINELETTERS")


@unless(AAPL.is_file(), "no data (set EVENFALL_DATA)")
class RecordedDay(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ticks = ev.open(cls.directory / "ticks")
        cls.day = cls.ticks.record("aapl", AAPL)

    def test_a_recording_is_listed_and_its_messages_are_all_there(self):
        self.assertEqual([recording.name for recording in self.ticks.recordings()], ["aapl"])
        self.assertEqual(self.day.zone, "America/New_York")
        self.assertEqual(self.day.messages().count(), 49_947)
        self.assertEqual(self.day.raw(columns=["number"]).arrow().num_rows, 49_947)

    def test_one_minute_bars_equal_those_of_duckdb_over_the_export(self):
        parquet = self.directory / "day.parquet"
        program("store", "export", self.directory / "ticks", "aapl", "--out", parquet)
        for width, seconds in [("1m", 60), ("1s", 1)]:
            ours = self.day.trades("AAPL").bars(width).arrow()
            theirs = duckdb.sql(BARS.format(parquet=parquet, width=seconds * 10**9)).fetchall()
            self.assertGreater(len(theirs), 3)
            begins = [begin.value for begin in ours["time"].cast("timestamp[ns]").to_pylist()]
            columns = [ours[name].to_pylist() for name in ("open", "high", "low", "close")]
            counts = [ours[name].to_pylist() for name in ("shares", "trades")]
            self.assertEqual(list(zip(begins, *columns, *counts)), theirs)

    def test_bars_have_the_price_by_volume_and_the_venues_zone(self):
        bar = self.day.trades("AAPL", end="09:36").bars("1m").arrow().slice(0, 1).to_pylist()[0]
        self.assertEqual(str(bar["time"]), "2019-12-30 09:35:00-05:00")
        trades = self.day.trades("AAPL", start="09:35", end="09:35:59.999999999").arrow()
        # The excerpt begins in the middle of a day: the prices of orders from before are unknown.
        counted = [row for row in trades.to_pylist() if row["printable"] and row["price"]]
        turnover = sum(row["price"] * row["shares"] for row in counted)
        self.assertAlmostEqual(bar["vwap"], float(turnover / bar["shares"]), places=9)
        self.assertEqual(self.day.trades().bars(datetime.timedelta(days=1)).count(), 1)

    def test_the_same_rows_go_twice_through_all_four_readers(self):
        rows = self.day.trades("AAPL", columns=["time", "shares", "price", "side"])
        wanted = {}
        for turn in range(2):
            frame, table = polars.DataFrame(rows), pyarrow.table(rows)
            panda = pandas.DataFrame.from_arrow(rows)
            sums = duckdb.sql("select count(*), sum(shares), sum(price) from rows").fetchall()[0]
            got = {
                "polars": (frame.height, frame["shares"].sum(), frame["price"].sum()),
                "pyarrow": (
                    table.num_rows,
                    compute.sum(table["shares"]).as_py(),
                    compute.sum(table["price"]).as_py(),
                ),
                "pandas": (len(panda), int(panda["shares"].sum()), panda["price"].sum()),
                "duckdb": sums,
            }
            wanted.setdefault("rows", got["polars"])
            for reader, values in got.items():
                self.assertEqual(values, wanted["rows"], f"{reader}, turn {turn}")
        self.assertGreater(wanted["rows"][0], 2_000)

    def test_a_relation_of_duckdb_reads_again_at_each_call(self):
        rows = self.day.messages(columns=["type"])
        relation = duckdb.sql("select type, count(*) from rows group by 1 order by 1")
        self.assertEqual(relation.fetchall(), relation.fetchall())

    def test_frames_of_pandas_keep_whole_numbers_whole(self):
        frame = self.day.messages().pandas()
        self.assertEqual(str(frame["match"].dtype), "int64[pyarrow]")
        self.assertTrue(frame["match"].isna().any())
        self.assertEqual(str(frame["time"].dtype), "timestamp[ns, tz=America/New_York][pyarrow]")
        self.assertIsInstance(self.day.trades().pandas()["price"].iloc[-1], decimal.Decimal)

    def test_batches_are_read_one_by_one(self):
        batches = [batch.count() for batch in self.day.messages(columns=["seq"])]
        self.assertEqual((sum(batches), max(batches)), (49_947, 8_192))
        first = next(iter(self.day.messages(columns=["seq", "time"])))
        self.assertEqual(first.columns, ["seq", "time"])
        self.assertEqual(first.polars()["seq"].to_list()[:3], [1, 2, 3])

    def test_times_are_text_or_those_of_datetime(self):
        zone = datetime.timezone(datetime.timedelta(hours=-5))
        wanted = self.day.trades(start="09:36", end="09:37").count()
        self.assertGreater(wanted, 100)
        for start, end, date in [
            ("2019-12-30 09:36", "2019-12-30T14:37:00Z", None),
            (datetime.time(9, 36), datetime.time(9, 37), datetime.date(2019, 12, 30)),
            (datetime.time(9, 36), "09:37", "2019-12-30"),
            (datetime.datetime(2019, 12, 30, 9, 36), "09:37", None),
            (datetime.datetime(2019, 12, 30, 9, 36, tzinfo=zone), "09:37", None),
            (pandas.Timestamp("2019-12-30 14:36", tz="UTC"), 1_577_716_620 * 10**9, None),
        ]:
            found = self.day.trades(start=start, end=end, date=date).count()
            self.assertEqual(found, wanted, f"{start} {end} {date}")

    def test_the_last_rows_are_those_that_reading_all_ends_with(self):
        for table, read in [("messages", self.day.messages), ("trades", self.day.trades)]:
            last = self.day.tail(7, table=table).arrow()
            self.assertEqual(last.to_pylist(), read().arrow().to_pylist()[-7:])
        self.assertEqual(self.day.tail(3, symbol="AAPL").count(), 3)
        self.assertEqual(self.day.tail(0).count(), 0)

    def test_the_book_at_a_time_agrees_with_the_last_quote_before_it(self):
        quote = self.day.quotes("AAPL", end="09:37").arrow().to_pylist()[-1]
        book = self.day.book("AAPL", at="09:37", levels=1).arrow().to_pylist()
        best = {row["side"]: (row["price"], row["shares"]) for row in book}
        wanted = {"B": (quote["bid"], quote["bid_size"]), "S": (quote["ask"], quote["ask_size"])}
        self.assertEqual(best, wanted)
        levels = self.day.book("AAPL", levels=5).arrow().to_pylist()
        bids = [row["price"] for row in levels if row["side"] == "B"]
        self.assertEqual((len(bids), bids), (5, sorted(bids, reverse=True)))

    def test_a_mistake_raises_by_its_kind_and_says_what_to_do(self):
        for call, kind, words in [
            (lambda: self.ticks["aap"], ev.NotFoundError, "the nearest are aapl"),
            (lambda: self.day.trades("APPL").polars(), LookupError, "the nearest are AAPL"),
            (lambda: self.day.trades(columns=["prize"]), ev.NotFoundError, "no column prize; it has"),
            (lambda: self.day.trades(date="2019-12-31"), ev.NotFoundError, "reaches from 2019-12-30 09:35"),
            (lambda: self.day.trades(start="noon"), ev.SettingsError, "noon is no time"),
            (lambda: self.day.trades(start=2**63), ValueError, "in 64 bits"),
            (lambda: self.day.trades(start="10:00", end="09:00"), ev.SettingsError, "later than"),
            (lambda: self.day.trades(start="09:35", date="noon"), ev.SettingsError, "noon is no time"),
            (lambda: self.day.quotes().bars("1m"), ev.SettingsError, "no column price"),
            (lambda: self.day.trades().bars("7m"), ev.SettingsError, "whole number of bars"),
            (lambda: self.day.book("NOBODY", at="09:36"), ev.NotFoundError, "has named NOBODY"),
            (lambda: self.day.live(), ev.SettingsError, "tcp://"),
            (lambda: ev.open(AAPL), ev.NotFoundError, "this is a file"),
            (lambda: ev.open(self.directory / "none")["x"], ev.NotFoundError, "no such directory"),
            (lambda: ev.open("tcp://127.0.0.1:1"), ev.StoreError, "refused"),
            (lambda: self.ticks.record("aapl", AAPL), ev.SettingsError, "choose a name"),
            (lambda: self.ticks.record("", AAPL), ev.SettingsError, 'the name "" must be 1 to'),
            (lambda: self.ticks.record("a\nb", AAPL), ev.SettingsError, "control characters"),
            (lambda: self.ticks.record("b", "none.itch50"), ev.NotFoundError, "none.itch50"),
            (lambda: self.ticks.record("b", __file__), ev.FeedError, "this is "),
            (lambda: self.ticks.record("b", AAPL, format="fix"), ev.SettingsError, "fix"),
        ]:
            with self.assertRaises(kind) as raised:
                call()
            self.assertIn(words, str(raised.exception))
            self.assertIsInstance(raised.exception, ev.Error)

    @unless(QUERY.is_file(), f"no program {QUERY}")
    def test_sql_is_answered_twice_by_the_program_beside(self):
        os.environ["EVENFALL_QUERY"] = str(QUERY)
        statement = "SELECT symbol, count(*) AS n FROM trades GROUP BY symbol"
        rows = self.ticks.query(statement, recording="aapl")
        wanted = self.day.trades().count()
        for _ in range(2):
            self.assertEqual(rows.polars().rows(), [("AAPL", wanted)])
        with self.assertRaisesRegex(ev.QueryError, "nowhere"):
            ev.query(self.directory / "ticks", "SELECT * FROM nowhere")

    def test_sql_without_its_program_says_how_to_get_it(self):
        os.environ["EVENFALL_QUERY"] = "/nonexistent/evenfall-query"
        with self.assertRaisesRegex(ev.QueryError, "cargo install --path apps/query"):
            self.ticks.query("SELECT 1")

    def test_an_error_of_rows_reaches_readers_of_other_languages(self):
        rows = self.day.trades("NOBODY")
        with self.assertRaisesRegex(Exception, "has no symbol NOBODY"):
            polars.DataFrame(rows)
        with self.assertRaises(ev.NotFoundError):
            rows.collect()

    def test_an_open_store_keeps_nobody_from_recording(self):
        program("store", "append", self.directory / "ticks", "again", "--feed", AAPL)
        self.assertEqual(self.ticks["again"].messages().count(), 49_947)
        rows = iter(self.day.messages())
        next(rows)
        with self.assertRaisesRegex(ev.StoreError, "open"):
            self.ticks.record("third", AAPL)
        del rows
        wait_until(lambda: self.can_record("third"))

    def can_record(self, name):
        try:
            return self.ticks.record(name, AAPL) is not None
        except ev.StoreError:
            return False

    def test_the_same_day_comes_from_a_server(self):
        place = address()
        self.ticks.record("served", AAPL)
        store = ev.open(self.directory / "ticks")
        wanted = store["served"].trades().bars("1m").arrow()
        server = self.start("store", "serve", self.directory / "ticks", "--listen", place)
        wait_until(lambda: answers(place))
        served = ev.open(f"tcp://{place}")
        self.assertEqual(served["served"].trades().bars("1m").arrow(), wanted)
        live = served["served"].live(last=5)
        self.assertEqual(next(live).polars()["seq"].to_list(), [*range(49_943, 49_948)])
        interrupted(lambda: next(live))
        # A reader of another language waits without the interpreter's lock, and looks for Ctrl-C.
        rows = ev.open(f"tcp://{place}")["served"].trades()
        server.send_signal(signal.SIGSTOP)
        threading.Timer(0.7, server.send_signal, [signal.SIGCONT]).start()
        self.assertEqual(pyarrow.table(rows).num_rows, served["served"].trades().count())
        server.terminate()
        server.wait()


if __name__ == "__main__":
    unittest.main()
