"""Asks the questions of traders in process and through both doors, and compares the answers.

    questions.py EVENFALL_QUERY DIR PG_ADDRESS FLIGHT_ADDRESS [--recording aapl] [--without WORDS]...

DIR has the recording, which is served at the addresses. The questions are those of
crates/query/sql/tests/questions.sql, whose answers a test of that crate compares with DuckDB's. Here
each is asked by `evenfall query`, by psql and by ADBC's driver of Flight SQL. Flight's table must be
equal to that of the file that the program writes, types included. psql's text must be that of
those values. --without leaves out the questions that have these words.
"""

import argparse
import csv
import io
import pathlib
import subprocess
import sys
import tempfile
import time

import adbc_driver_flightsql.dbapi
import pyarrow
import pyarrow.compute
import pyarrow.ipc

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTIONS = ROOT / "crates/query/sql/tests/questions.sql"


def questions():
    """Titles and statements."""
    for block in QUESTIONS.read_text().split("\n-- question ")[1:]:
        title, rest = block.split("\n", 1)
        yield title, rest.split("\n-- duckdb\n")[0]


def in_process(arguments, sql, directory):
    """The table that the program writes."""
    out = directory / "answer.arrow"
    command = [arguments.program, arguments.dir, sql, "--format", "arrow", "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    with pyarrow.OSFile(str(out)) as file:
        return pyarrow.ipc.open_stream(file).read_all()


def by_psql(arguments, sql):
    """The fields of psql's rows; None for a null."""
    host, port = arguments.pg.split(":")
    command = ["psql", "-X", "-h", host, "-p", port, "-U", "anyone", "-d", arguments.recording, "-v", "ON_ERROR_STOP=1"]
    command += ["--csv", "-t", "-P", "null=(null)", "-c", sql]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [[None if field == "(null)" else field for field in row] for row in csv.reader(io.StringIO(said))]


def as_postgres_prints(column):
    """The values of a column as text, floating point numbers as they are."""
    kind = column.type
    if pyarrow.types.is_timestamp(kind):
        # Always six digits, cut: some drivers read nine digits wrongly.
        zone = "+00" if kind.tz else ""
        counts = column.cast(pyarrow.timestamp("ns")).cast(pyarrow.int64()).to_pylist()

        def text(count):
            seconds, rest = divmod(count, 1_000_000_000)
            micros = f".{rest // 1000:06}"
            return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + micros + zone

        return [None if count is None else text(count) for count in counts]
    if pyarrow.types.is_boolean(kind):
        return [None if value is None else "t" if value else "f" for value in column.to_pylist()]
    if pyarrow.types.is_floating(kind):
        return column.to_pylist()
    if pyarrow.types.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    return [None if value is None else str(value) for value in column.to_pylist()]


def is_equal(ours, printed):
    if isinstance(ours, float) and printed is not None:
        return ours == float(printed) or (ours != ours and printed == "NaN")
    return ours == printed


def plain_texts(table):
    """A table without views of text, which Flight does not send."""
    for at, field in enumerate(table.schema):
        if pyarrow.types.is_string_view(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pyarrow.string()))
    return table


def compare(title, file, flight, printed):
    """What differs, in words."""
    file, flight = plain_texts(file), plain_texts(flight)
    if [field.type for field in file.schema] != [field.type for field in flight.schema]:
        yield f"{title}: types by Flight {flight.schema.types}, in the file {file.schema.types}"
    elif not all(one.equals(other) for one, other in zip(file.columns, flight.columns)):
        yield f"{title}: Flight's rows differ from the file's"
    expected = list(zip(*map(as_postgres_prints, file.columns)))
    if len(expected) != len(printed):
        yield f"{title}: {len(printed)} rows by psql, {len(expected)} in the file"
    for number, (ours, row) in enumerate(zip(expected, printed)):
        if len(ours) != len(row) or not all(map(is_equal, ours, row)):
            yield f"{title}: row {number}: psql {row}, in the file {ours}"
            return


def main():
    parser = argparse.ArgumentParser()
    for name in ["program", "dir", "pg", "flight"]:
        parser.add_argument(name)
    parser.add_argument("--recording", default="aapl")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    asked, rows, wrong = 0, 0, []
    options = {"adbc.flight.sql.rpc.call_header.database": arguments.recording}
    with (
        tempfile.TemporaryDirectory() as directory,
        adbc_driver_flightsql.dbapi.connect(f"grpc://{arguments.flight}", db_kwargs=options) as connection,
    ):
        for title, sql in questions():
            if any(words in sql for words in arguments.without):
                continue
            file = in_process(arguments, sql, pathlib.Path(directory))
            with connection.cursor() as cursor:
                cursor.execute(sql)
                flight = cursor.fetch_arrow_table()
            wrong += compare(title, file, flight, by_psql(arguments, sql))
            asked, rows = asked + 1, rows + file.num_rows
    print(*wrong, sep="\n")
    print(f"{asked} questions, {rows} rows, in process, by psql and by ADBC: {len(wrong)} differ")
    sys.exit(1 if wrong or not rows else 0)


main()
