"""Checks what Apache Spark reads out of a store: counts, sums and instants of each feed.

The facts are those of check.py. Spark refuses Parquet with nanoseconds, so that the export has
microseconds, which are those of an export with nanoseconds, cut.
"""

import pathlib
import subprocess
import sys
import tempfile
from decimal import Decimal

import polars
from pyspark.sql import SparkSession, functions

from check import itch, lobster


def export(program, store, path, *more):
    words = [program, "store", "export", store, "feed", "--out", path, *more]
    subprocess.run([str(word) for word in words], check=True, stdout=sys.stderr)


def by_spark(spark, path):
    table = spark.read.parquet(str(path))
    types = {row["type"]: row["count"] for row in table.groupBy("type").count().collect()}
    least, greatest = functions.min("event_ns"), functions.max("event_ns")
    sums = (functions.sum("shares"), functions.sum("price"), least, greatest)
    shares, price, first, last = table.agg(*sums).first()
    return (types, int(shares), Decimal(price), int(first), int(last))


def instants(spark, path):
    """The instants of all rows, in microseconds since 1970."""
    table = spark.read.parquet(str(path)).orderBy("stream", "number")
    micros = table.select(functions.unix_micros("time_ns").alias("micros"))
    return [row["micros"] for row in micros.collect()]


def check(spark, program, feed, work):
    read = lobster if feed.suffix == ".zip" else itch
    messages, facts = read(feed.read_bytes())
    store = work / "store"
    words = [program, "store", "append", store, "feed", "--feed", feed]
    subprocess.run([str(word) for word in words], check=True, stdout=sys.stderr)
    cut, whole = work / "cut.parquet", work / "whole.parquet"
    export(program, store, cut, "--time-unit", "us")
    export(program, store, whole)
    found = by_spark(spark, cut)
    assert found == facts.all(), f"{feed.name} by Spark:\n{found}\n{facts.all()}"
    wanted = polars.read_parquet(whole)["time_ns"].dt.timestamp("us").to_list()
    assert instants(spark, cut) == wanted, f"{feed.name}: Spark has other instants"
    trades = work / "trades.parquet"
    export(program, store, trades, "--table", "trades", "--time-unit", "us")
    rows = spark.read.parquet(str(trades)).where("printable").count()
    assert rows > 0, f"{feed.name}: Spark has no trades"
    print(f"{feed.name}: Spark {spark.version} reads {len(messages)} messages, {rows} trades, equal")


def main():
    program, *feeds = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for feed in map(pathlib.Path, feeds):
        with tempfile.TemporaryDirectory() as work:
            check(spark, program, feed, pathlib.Path(work))
    spark.stop()


if __name__ == "__main__":
    main()
