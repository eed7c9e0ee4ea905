"""evenfall in Python: market data that reaches every receiver at the same instant.

    import evenfall as ev

    ticks = ev.open("ticks")                                    # a store of recordings
    ticks.record("aapl", "20191230_aapl.itch50")                # a feed file, byte for byte
    day = ticks["aapl"].trades("AAPL", start="09:35", end="09:40")
    day.bars("1m").polars()                                     # or .pandas(), .arrow()
    duckdb.sql("select side, sum(shares) from day group by 1")  # any reader of Arrow streams

    with ev.subscribe("evenfall.toml", "desk-1", only=["AAPL"]) as feed:
        for batch in feed.batches(most=65_536, wait=0.02):      # or: for message in feed
            polars.DataFrame(batch)

Times are text as on the command line ("2019-12-30", "09:35" by the venue's clock,
"2019-12-30T14:35:00Z"), or a `date`, `time` or `datetime`. A `datetime` without a zone is the
venue's clock. Prices are decimals in dollars, with four digits. A call that waits lets other
threads run, and Ctrl-C ends it within 100 ms.
"""

from . import errors
from ._evenfall import (
    Batches,
    Feed,
    FeedBatches,
    LiveRows,
    Lost,
    Message,
    Pending,
    Plan,
    Publisher,
    Recording,
    Report,
    Root,
    Rows,
    Store,
    Table,
    __version__,
    open,
    plan,
    publish,
    query,
    report,
    subscribe,
)
from ._sim import sim
from .errors import (
    Error,
    FeedError,
    ForkedError,
    NotFoundError,
    QueryError,
    RunError,
    SettingsError,
    StoreError,
    TooSlowError,
)

__all__ = [
    "Batches",
    "Error",
    "Feed",
    "FeedBatches",
    "FeedError",
    "ForkedError",
    "LiveRows",
    "Lost",
    "Message",
    "NotFoundError",
    "Pending",
    "Plan",
    "Publisher",
    "QueryError",
    "Recording",
    "Report",
    "Root",
    "Rows",
    "RunError",
    "SettingsError",
    "Store",
    "StoreError",
    "Table",
    "TooSlowError",
    "__version__",
    "errors",
    "open",
    "plan",
    "publish",
    "query",
    "report",
    "sim",
    "subscribe",
]
