"""Compares the chunks of a store with its export: DuckDB, Polars and PyArrow read the chunks as they are.

    chunks.py EXPORT.parquet CHUNK.parquet...

The chunks are those of one file, in order, from its first record on. The export has the records
behind the last whole chunk too. Prints one line for each reader, and ends with an error at the
first difference.
"""

import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

export, chunks = sys.argv[1], sys.argv[2:]


def rows(table):
    """The table without the types that readers choose themselves."""
    return {name: table.column(name).to_pylist() for name in table.column_names}


arrow = pa.concat_tables([pq.read_table(chunk) for chunk in chunks])
count = arrow.num_rows
whole = rows(pq.read_table(export).slice(0, count))
assert count > 0 and rows(arrow) == whole, "pyarrow reads other rows"
print(f"pyarrow: {count} rows")

polars = pl.concat([pl.read_parquet(chunk) for chunk in chunks])
exported = pl.read_parquet(export).head(count)
for name in exported.columns:
    assert polars[name].to_list() == exported[name].to_list(), f"Polars reads another {name}"
print(f"polars: {len(polars)} rows")

quoted = ", ".join("'" + chunk.replace("'", "''") + "'" for chunk in chunks)
names = ", ".join(f'"{name}"' for name in arrow.column_names)
missing = duckdb.sql(
    f"""SELECT count(*) FROM (
        SELECT {names} FROM read_parquet([{quoted}])
        EXCEPT ALL SELECT {names} FROM read_parquet('{export}'))"""
).fetchall()[0][0]
duck = duckdb.sql(f"SELECT count(*) FROM read_parquet([{quoted}])").fetchall()[0][0]
assert missing == 0 and duck == count, f"DuckDB reads {duck} rows, {missing} of them others"
print(f"duckdb: {duck} rows")
