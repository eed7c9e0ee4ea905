"""Asks a served recording through clients that are not ours, and checks their answers.

    clients.py PG_ADDRESS FLIGHT_ADDRESS

The recording `day` is the one of apps/query/tests/served.rs: 300 orders of three symbols, each with an
execution. A client that is not installed is named in a line that begins with "skipped:".
"""

import asyncio
import datetime
import decimal
import importlib.util
import sys

PG, FLIGHT = sys.argv[1:3]
HOST, PORT = PG.split(":")
FIRST = datetime.datetime(2026, 11, 20, 9, 30)
EXECUTIONS = "SELECT count(*) FROM messages WHERE type = 'E' AND symbol = "


def equal(got, expected):
    assert got == expected, f"{got!r} instead of {expected!r}"


def psycopg_3():
    import psycopg

    with psycopg.connect(host=HOST, port=PORT, dbname="day", user="anyone") as connection:
        rows = connection.execute(EXECUTIONS + "%s AND shares >= %s", ("AAPL", 1)).fetchall()
        equal(rows, [(100,)])
        sql = "SELECT seq, time, utc, price, side, match FROM messages ORDER BY seq LIMIT 2"
        first, second = connection.execute(sql).fetchall()
        utc = datetime.datetime(2026, 11, 20, 14, 30, tzinfo=datetime.timezone.utc)
        equal(first, (1, FIRST, utc, decimal.Decimal("100.0000"), "B", None))
        # Nanosecond 1,000,001 leaves as microsecond 1,000.
        equal(second[1], FIRST + datetime.timedelta(microseconds=1000))
        equal(connection.execute("SELECT row_number() OVER () FROM messages LIMIT 1").fetchone(), (1,))
        limit = decimal.Decimal("100.0100")
        equal(connection.execute("SELECT count(*) FROM messages WHERE price < %s", (limit,)).fetchone(), (100,))
        later = FIRST + datetime.timedelta(milliseconds=2)
        equal(connection.execute("SELECT count(*) FROM messages WHERE time < %s", (later,)).fetchone(), (2,))
        equal(connection.execute("SELECT %s::text", (None,)).fetchone(), (None,))
        # The sixth execution of a text is prepared on the server.
        for _ in range(8):
            equal(connection.execute(EXECUTIONS + "%s", ("MSFT",)).fetchone(), (100,))
        with connection.cursor(binary=True) as cursor:
            equal(cursor.execute(sql).fetchone(), first)
        try:
            connection.execute("SELECT pricee FROM messages")
            raise AssertionError("an unknown column is answered")
        except psycopg.errors.UndefinedColumn as error:
            equal(error.diag.statement_position, "8")
        connection.rollback()


def sqlalchemy_with_pandas():
    import pandas
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"postgresql+psycopg://anyone@{PG}/day")
    with engine.connect() as connection:
        frame = pandas.read_sql("SELECT symbol, shares, price, time FROM messages WHERE type = 'A' ORDER BY seq", connection)
        equal(len(frame), 300)
        equal(int(frame["shares"].sum()), sum(100 + order for order in range(300)))
        equal(frame["time"].iloc[0].to_pydatetime(), FIRST)
        rows = connection.execute(sqlalchemy.text(EXECUTIONS + ":symbol"), {"symbol": "TEST"}).fetchall()
        equal(rows, [(100,)])
    inspector = sqlalchemy.inspect(engine)
    assert "day" in inspector.get_schema_names(), inspector.get_schema_names()
    equal(sorted(inspector.get_table_names(schema="day")), ["messages", "quotes", "raw", "trades"])
    columns = {column["name"]: column["type"] for column in inspector.get_columns("trades", schema="day")}
    equal(isinstance(columns["shares"], sqlalchemy.BIGINT), True)
    equal(isinstance(columns["price"], sqlalchemy.NUMERIC), True)
    equal(isinstance(columns["time"], sqlalchemy.TIMESTAMP), True)
    with engine.connect() as connection:
        asked = sqlalchemy.text("SELECT data_type FROM information_schema.columns WHERE table_name = 'messages' AND column_name = 'shares'")
        equal(connection.execute(asked).scalar(), "bigint")
    engine.dispose()


def asyncpg_with_parameters():
    import asyncpg

    async def ask():
        connection = await asyncpg.connect(host=HOST, port=int(PORT), database="day", user="anyone")
        equal(await connection.fetchval(EXECUTIONS + "$1", "AAPL"), 100)
        row = await connection.fetchrow("SELECT time, price, seq FROM messages WHERE seq = $1", 2)
        equal(row["time"], FIRST + datetime.timedelta(microseconds=1000))
        equal(row["price"], None)
        sql = "SELECT price FROM messages WHERE price >= $1 ORDER BY seq LIMIT 1"
        equal(await connection.fetchval(sql, decimal.Decimal("100.0010")), decimal.Decimal("100.0010"))
        async with connection.transaction(readonly=True):
            equal(await connection.fetchval("SELECT count(*) FROM messages WHERE time >= $1", FIRST), 600)
            # In pieces of 50 rows.
            seen = [row["seq"] async for row in connection.cursor("SELECT seq FROM messages ORDER BY seq")]
            equal(seen, list(range(1, 601)))
        try:
            await connection.fetchval(
                "SELECT count(*) FROM generate_series(1, 1000000) a(x) JOIN generate_series(1, 1000000) b(y) ON x + y < 0",
                timeout=0.5,
            )
            raise AssertionError("an endless statement is answered")
        except (asyncio.TimeoutError, asyncpg.QueryCanceledError):
            pass
        equal(await connection.fetchval("SELECT 1"), 1)
        await connection.close()
        # A pool gives a connection back as it was.
        pool = asyncpg.create_pool(host=HOST, port=int(PORT), database="day", user="anyone", min_size=1, max_size=1)
        async with pool:
            async with pool.acquire() as connection:
                await connection.execute("SET statement_timeout = '7s'")
                await connection.execute("SET TIME ZONE 'America/New_York'")
                equal(await connection.fetchval("SHOW statement_timeout"), "7s")
            async with pool.acquire() as connection:
                equal(await connection.fetchval("SHOW statement_timeout"), "0")
                equal(await connection.fetchval("SHOW TIME ZONE"), "Etc/UTC")

    asyncio.run(ask())


def adbc_flightsql():
    import adbc_driver_flightsql.dbapi
    import pyarrow

    options = {"adbc.flight.sql.rpc.call_header.database": "day"}
    with adbc_driver_flightsql.dbapi.connect(f"grpc://{FLIGHT}", db_kwargs=options) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT symbol, time, price, seq FROM messages ORDER BY seq")
            table = cursor.fetch_arrow_table()
            equal(table.num_rows, 600)
            equal(table.schema.field("symbol").type, pyarrow.string())
            equal(table.schema.field("time").type, pyarrow.timestamp("ns"))
            equal(table.schema.field("price").type, pyarrow.decimal128(18, 4))
            equal(table["time"][1].value % 1_000_000_000, 1_000_001)
            cursor.execute(EXECUTIONS + "? AND shares >= ?", ("AAPL", 1))
            equal(cursor.fetchone(), (100,))
            cursor.execute(EXECUTIONS + "$1", ("MSFT",))
            equal(cursor.fetchone(), (100,))
            try:
                cursor.execute("SELECT pricee FROM messages")
                raise AssertionError("an unknown column is answered")
            except Exception as error:
                assert "pricee" in str(error), error
        equal(connection.adbc_get_info()["vendor_name"], "evenfall")
        objects = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        equal([catalog["catalog_name"] for catalog in objects], ["day"])
        equal(sorted(schema["db_schema_name"] for schema in objects[0]["catalog_db_schemas"]), ["day", "public"])
        assert connection.adbc_get_table_types() == ["TABLE"]
        schema = connection.adbc_get_table_schema("trades", db_schema_filter="day")
        assert "printable" in schema.names, schema


def adbc_postgresql():
    import adbc_driver_postgresql.dbapi

    with adbc_driver_postgresql.dbapi.connect(f"postgresql://anyone@{PG}/day") as connection:
        with connection.cursor() as cursor:
            # COPY is not served.
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute("SELECT seq, symbol FROM messages ORDER BY seq LIMIT 3")
            equal(cursor.fetchall(), [(1, "AAPL"), (2, "AAPL"), (3, "MSFT")])


CLIENTS = [
    (psycopg_3, ["psycopg"]),
    (sqlalchemy_with_pandas, ["psycopg", "sqlalchemy", "pandas"]),
    (asyncpg_with_parameters, ["asyncpg"]),
    (adbc_flightsql, ["adbc_driver_flightsql", "pyarrow"]),
    (adbc_postgresql, ["adbc_driver_postgresql", "pyarrow"]),
]

failed = 0
for client, packages in CLIENTS:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        print(f"skipped: {client.__name__}, without {', '.join(missing)} in target/venv-query (make deps)")
        continue
    try:
        client()
        print(f"answered: {client.__name__}")
    except Exception as error:
        import traceback

        traceback.print_exc()
        print(f"failed: {client.__name__}: {type(error).__name__}: {error}")
        failed += 1
sys.exit(1 if failed else 0)
