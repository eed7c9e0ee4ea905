"""How old the newest row of an answer is, by many questions to a served recording that grows.

    edge.py PG_ADDRESS RECORDING TRIES

"behind" is the time of the question, before it is sent, less the release of the newest row in the answer.
"old" is the same when the answer has come. Both contain the time in which the feed sends nothing.
"""

import json
import sys
import time

import psycopg

address, recording, tries = sys.argv[1], sys.argv[2], int(sys.argv[3])
host, port = address.split(":")


def percentiles(values):
    values.sort()
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))], 2)
    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1)}


with psycopg.connect(host=host, port=port, dbname=recording, user="anyone", autocommit=True) as connection:
    for table in ["messages", "trades", "quotes"]:
        sql = f"SELECT max(recorded) FROM {table} WHERE recorded > now() - INTERVAL '2 seconds'"
        behind, old, took = [], [], []
        for number in range(tries + 20):
            asked = time.time()
            newest = connection.execute(sql).fetchone()[0]
            answered = time.time()
            newest = newest.timestamp() if newest else asked - 2
            if number < 20:
                continue
            behind.append((asked - newest) * 1e3)
            old.append((answered - newest) * 1e3)
            took.append((answered - asked) * 1e3)
            # Questions at any moment between two messages.
            time.sleep((number * 7919 % 10) / 1e3)
        line = {"table": table, "tries": tries}
        line["behind"] = percentiles(behind)
        line["old"] = percentiles(old)
        line["took"] = percentiles(took)
        print(json.dumps(line), flush=True)
