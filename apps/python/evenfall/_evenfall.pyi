"""The native module: everything here is a name of the package `evenfall` too."""

import builtins
from collections.abc import Mapping, Sequence
from datetime import date as Date
from datetime import datetime, time, timedelta
from decimal import Decimal
from os import PathLike
from typing import Any, Protocol, Self, final, type_check_only

import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
import polars  # type: ignore[import-not-found, unused-ignore]
import pyarrow  # type: ignore[import-untyped, import-not-found, unused-ignore]

__version__: str

_Path = str | PathLike[str]
_Time = str | Date | datetime | time | int
# A time: text as on the command line, a type of `datetime`, or ns since 1970.

@type_check_only
class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class Rows:
    """Rows of a table. Nothing is read until a reader asks, and every request reads anew.

    Polars, PyArrow, DuckDB and pandas read it as it is: it is an Arrow stream
    (`__arrow_c_stream__`), whose batches are never collected."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __iter__(self) -> Batches:
        """Batches of at most 8,192 rows, as they are read."""

    def collect(self) -> Rows:
        """Reads all rows into memory, once. The stream of the result does not read again."""

    def count(self) -> int:
        """The number of rows, by reading them."""

    def polars(self) -> polars.DataFrame:
        """A Polars DataFrame."""

    def arrow(self) -> pyarrow.Table:
        """A PyArrow Table."""

    def pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame with Arrow's nullable types: a missing number stays an integer
        column. It needs pyarrow."""

    def bars(self, width: str | timedelta) -> Rows:
        """Bars of these trades: time (the beginning of the bar), symbol, open, high, low, close
        (dollars), shares, vwap (dollars), trades.

        `width` is "1s", "1m", "5m", "1h" or "1d": a whole number of bars is a day. Bars begin at
        the venue's midnight. Trades that do not count towards the volume are in no bar, and a
        minute without trades has no bar."""

@final
class Batches:
    """Batches of rows, as they are read."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Rows: ...

@final
class Store:
    """A store of recordings and users' files.

    A directory is open only while rows of it are read, so that a recorder can start meanwhile. A
    running recorder or server is read by its address."""

    @property
    def place(self) -> str:
        """Where the store is."""

    def recordings(self) -> list[Recording]:
        """The recordings, by name."""

    def tables(self) -> list[Table]:
        """Users' files of records, by name."""

    def __getitem__(self, name: str, /) -> Recording:
        """A recording, or a user's file as a Table.

        Raises NotFoundError with the nearest names."""

    def record(
        self,
        name: str,
        feed: _Path,
        *,
        date: Date | str | None = None,
        format: str | None = None,
        symbol: str | None = None,
    ) -> Recording:
        """Records a feed file (ITCH 5.0, pcap or LOBSTER; also gzip and zip), byte for byte.

        `date` is the day of a feed whose messages state times of day; by default the date in the
        file's name. `symbol` is that of messages which name none (LOBSTER's); by default the symbol
        in the file's name. After Ctrl-C the first messages are recorded."""

    def create(
        self,
        name: str,
        fields: dict[str, str],
        *,
        price_decimals: int = 4,
        window: str | timedelta | None = None,
        sequence: str | None = None,
    ) -> Table:
        """Makes a table for rows of your own. A table of the same fields stays as it is, and a
        missing directory is made.

        `fields` has the type of each field: "time" (the first field, ns since 1970), "u8", "u16",
        "u32", "u64", "i64", "f64", "price" (with `price_decimals` digits behind the point) or
        "bytes:8" (eight bytes). `window` ("1ms") sorts rows that come late by at most so much, with
        `sequence`, the field that numbers them; without a window, rows come in order of time."""

    def append(self, name: str, rows: _ArrowStream, *, ack: str = "local") -> int:
        """Appends rows to a table. See `Table.append`."""

    def query(self, sql: str, *, recording: str | None = None) -> Rows:
        """Rows of a statement in SQL, by the program `evenfall-query` on the PATH, or where the
        variable EVENFALL_QUERY says. Every reading runs the statement."""

@final
class Table:
    """A user's file of records."""

    @property
    def name(self) -> str:
        """Name of the file."""

    def append(self, rows: _ArrowStream, *, ack: str = "local") -> int:
        """Appends rows, and gives the number of rows that the store has acknowledged.

        `rows` is anything with `__arrow_c_stream__`: a frame of Polars or pandas, a table of
        PyArrow, a relation of DuckDB, Rows. Its columns are named as the table's fields, in any
        order. Timestamps without a zone are UTC. A value of which a digit would be lost is refused,
        and a missing value too. Text is filled up with spaces.

        `ack` says where the rows are when they are acknowledged: "memory", "local" (synced on this
        disk), "replica" or "object". Raises SettingsError with the column and the row (counted from
        0), or StoreError. The rows before a wrong row are appended, and the attribute `rows_kept`
        of every error has their number."""

    def rows(
        self,
        *,
        start: _Time | None = None,
        end: _Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """Rows of the file, between two times in UTC, both included."""

@final
class Recording:
    """A recording of a feed.

    Rows are chosen by the time under which the store keeps them: of a recorded file the messages'
    own time, of a run the time of the release. Both ends are included. `start` and `end` may be
    times of day ("09:35") where the recording has one day, or with `date`."""

    @property
    def name(self) -> str:
        """Name of the recording."""

    @property
    def zone(self) -> str:
        """The zone of the venue's clock, such as America/New_York."""

    def messages(
        self,
        symbol: str | None = None,
        *,
        date: Date | str | None = None,
        start: _Time | None = None,
        end: _Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """Every message: time (in the venue's zone), recorded, ts (ns of the day), stream, seq,
        type, locate, order_ref, new_order_ref, side, shares, symbol, price (dollars), match."""

    def trades(
        self,
        symbol: str | None = None,
        *,
        date: Date | str | None = None,
        start: _Time | None = None,
        end: _Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """Every execution, with price (dollars) and side of the order that rested: time,
        recorded, ts, stream, seq, type, symbol, price, shares, side, order_ref, match, printable
        (whether it counts towards the volume)."""

    def quotes(
        self,
        symbol: str | None = None,
        *,
        date: Date | str | None = None,
        start: _Time | None = None,
        end: _Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """The best bid and ask at each nanosecond that changed them: time, recorded, ts, stream,
        symbol, bid, bid_size, ask, ask_size (dollars and shares)."""

    def raw(
        self,
        symbol: str | None = None,
        *,
        date: Date | str | None = None,
        start: _Time | None = None,
        end: _Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """Every message with all columns of `evenfall store export`, its bytes too."""

    def tail(
        self,
        n: int = 10,
        *,
        table: str = "messages",
        symbol: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """The last `n` rows of messages, trades, quotes or raw."""

    def book(
        self,
        symbol: str,
        *,
        at: _Time | None = None,
        date: Date | str | None = None,
        levels: int = 10,
    ) -> Rows:
        """The book after all messages up to a time, by default the last: side (B, S), level (1 is
        the best), price (dollars), shares, orders."""

    def live(self, symbol: str | None = None, *, last: int = 0) -> LiveRows:
        """Messages as they are recorded, in batches without end, from the last `last` messages of
        each stream on. For a store that is open by its address."""

@final
class LiveRows:
    """Batches of a recording that still grows. Ctrl-C ends the wait for the next one."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Rows: ...

@final
class Message:
    """A message, released at its deadline."""

    @property
    def stream(self) -> int:
        """Tree of the message."""

    @property
    def number(self) -> int:
        """Number of the message within its tree, from 0."""

    @property
    def deadline_ns(self) -> int | None:
        """When the message was to be released, in ns since 1970; None when it was not held."""

    @property
    def released_ns(self) -> int:
        """When the message was released, in ns since 1970, read from the clock at that moment."""

    @property
    def format(self) -> str | None:
        """The word of the message's format; None for opaque bytes."""

    @property
    def bytes(self) -> builtins.bytes:
        """The message as the venue sent it."""

    @property
    def type(self) -> str | None:
        """Type letter of ITCH, or digit of LOBSTER."""

    @property
    def symbol(self) -> str | None:
        """The security, named by this message or by an earlier one with the same locate."""

    @property
    def side(self) -> str | None:
        """B buy, S sell."""

    @property
    def shares(self) -> int | None:
        """Shares entered, executed or cancelled."""

    @property
    def order_ref(self) -> int | None:
        """The order; of a replacement, the old order."""

    @property
    def price(self) -> Decimal | None:
        """The price in dollars."""

@final
class Lost:
    """Messages that could not be repaired. The next message follows them."""

    @property
    def stream(self) -> int:
        """Tree of the messages."""

    @property
    def first(self) -> int | None:
        """Number of the first lost message; None when it is not known."""

    @property
    def messages(self) -> int | None:
        """Number of lost messages; None when it is not known."""

@final
class Feed:
    """A subscription. The receiver joins the run at the first request.

    Iterate over it for messages one by one (`for`, `async for`), or over `batches`. One thread
    reads it; leaving the `with` leaves the run."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message | Lost: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Message | Lost: ...
    def close(self) -> None:
        """Leaves the run."""

    def batches(
        self, most: int = 65_536, wait: float = 0.02, *, bytes: bool = False
    ) -> FeedBatches:
        """Batches of messages as Rows, each with a row at least and `most` rows at most. A batch
        is given `wait` seconds after its first message.

        The columns are those of a recording's messages, with released in the place of recorded,
        and with deadline (None without a hold) and lost: the messages that were lost in the
        stream right before the row (None for an unknown number). `bytes` adds message, the bytes
        of the venue."""

    @property
    def messages(self) -> int:
        """Messages that were given so far."""

    @property
    def lost(self) -> int:
        """Messages that were reported lost so far."""

    @property
    def content_hash(self) -> str | None:
        """The hash of the messages so far, in hex, as `evenfall feed info` prints that of a file;
        None unless the feed was subscribed with hashed=True."""

@final
class FeedBatches:
    """Batches of a feed, until its end."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Rows: ...

@final
class Root:
    """The root of a run, in a thread of this process. Leaving the `with` ends the stream."""

    def __enter__(self) -> Self: ...
    def __exit__(self, raised: object, *rest: object) -> None: ...
    def publish(self, message: bytes, key: int = 0) -> None:
        """Publishes a message of at most 65,000 bytes, and waits while the queue (16,384 messages,
        32 MiB) is full. Messages of one key keep their order."""

    def finish(self) -> dict[str, Any]:
        """Ends the stream, waits until every receiver has it, and gives the summary: messages,
        content_hash and counters."""

@final
class Publisher:
    """A publisher that outlives the root: it goes on with a standby when the root dies, and knows
    the number of each message in the feed."""

    def __new__(
        cls,
        roots: Sequence[str],
        *,
        address: str,
        id: int,
        key: _Path | None = None,
        node_key: _Path | None = None,
    ) -> Self:
        """`roots` has the addresses of the root and of its standbys: one, three or five. `key` is
        the file of the shared key, and `node_key` that of this publisher alone in a run with node
        keys."""

    def __enter__(self) -> Self: ...
    def __exit__(self, raised: object, *rest: object) -> None: ...
    def before(self) -> int:
        """Waits until a root takes messages. Gives how many messages of earlier processes under
        this id are in the feed."""

    def publish(self, message: bytes) -> int:
        """Sends a message, and waits for its number in the feed."""

    def send(self, message: bytes) -> Pending:
        """Sends a message, and waits only while the queue is full."""

    def finish(self) -> dict[str, Any]:
        """Tells the roots that no message follows, and gives the summary."""

@final
class Pending:
    """A message whose number in the feed may not be known yet."""

    def number(self) -> int:
        """Waits for the number."""

@final
class Report:
    """What a run was like."""

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of `evenfall report --json`; keys that end in _us are microseconds."""

    @property
    def verdict(self) -> str:
        """The run in a sentence."""

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before the figures are believed."""

    def html(self) -> str:
        """The page of the run, one file of HTML."""

    def messages(self) -> Rows:
        """The fairness log, a row for each message: stream, message, scheduled, sent, deadline,
        first_arrival, last_arrival, first_release, last_release (instants), receivers, late."""

@final
class Plan:
    """A multicast tree, and how long its ways are. Hosts are rows of the matrix, from 0, or names
    where `plan` was given names."""

    @property
    def tree(self) -> list[Any]:
        """The hosts in the order of their places: the root first, level by level. The children of
        place p are the places p * fanout + 1 to p * fanout + fanout."""

    @property
    def root(self) -> Any:
        """The root."""

    @property
    def parents(self) -> dict[Any, Any]:
        """The parent of each host; None for the root."""

    @property
    def delays_us(self) -> dict[Any, float]:
        """The predicted delay from the root to each host over its parents alone, in microseconds, at
        the percentile of the plan. Extra copies (hedging) make the ways shorter."""

    @property
    def worst_leaf(self) -> Any:
        """The leaf with the longest way; None with extra copies, which come over many ways."""

    @property
    def worst_leaf_us(self) -> float:
        """The objective: the delay of the worst leaf, in microseconds, with extra copies."""

    @property
    def bound_us(self) -> float | None:
        """No tree has a better worst leaf by the same estimates, in microseconds; None when that is
        not known."""

    @property
    def gap(self) -> float | None:
        """How much worse than the best possible tree this tree is at most, as a share."""

def plan(
    delays: Any,
    *,
    depth: int,
    fanout: int,
    names: Sequence[str] | None = None,
    root: int | str | None = None,
    roots: int = 1,
    candidates: int | None = None,
    hedging: int = 1,
    percentile: float = 90.0,
    method: str = "minmax",
    seed: int = 1,
    correct_clocks: bool = False,
) -> Plan:
    """Chooses a multicast tree, as `evenfall plan tree` does.

    `delays[a][b]` is the one-way delay from host a to host b in microseconds: a numpy array of two
    dimensions, what has `to_numpy`, or a list of lists. The diagonal is not read. `depth` is the
    number of hops from the root to a leaf, and `fanout` the children of each inner node.

    `hedging` is the number of extra copies, `percentile` (50 to 99.9) the percentile of a path by
    which trees are compared, and `method` one of minmax, greedy, lemondrop, "lemondrop 30", weighted,
    p90, p50 or another statistic of an edge, rand, or "worst p90". `root` is a host; without it the
    planner chooses, from `roots` random ones where the method is one of the statistics. The same
    seed gives the same tree. `correct_clocks` takes the offsets of the hosts' clocks out first."""

def open(place: _Path) -> Store:
    """Opens a store: its directory, "tcp://127.0.0.1:7410" of a server or of a recorder that
    serves, or the place of its objects. A missing directory is made by `Store.record`."""

def subscribe(
    config: _Path | None = None,
    name: str | None = None,
    *,
    root: str | None = None,
    address: str | None = None,
    id: int | None = None,
    key: _Path | None = None,
    node_key: _Path | None = None,
    standbys: Sequence[str] | None = None,
    trees: int = 1,
    only: Sequence[str] | None = None,
    waiting: int = 1_048_576,
    hashed: bool = False,
) -> Feed:
    """Subscribes as a node of a settings file (`config`, `name`), or by plain values: the address
    of the root, the address and the id of this receiver in the root's settings, the file of the
    shared key (64 hexadecimal digits), the file of this receiver's own key in a run with node keys
    (`evenfall key new --nodes` makes both), and the root's standbys. A settings file names its keys
    itself.

    `only` names symbols; other messages of a symbol are not given. `waiting` messages, and 256 MiB,
    may wait for the program: one that is further behind is cut off with TooSlowError, and other
    receivers are not affected. `hashed` keeps `Feed.content_hash`."""

def publish(
    address: str,
    receivers: Mapping[int, str],
    *,
    id: int = 0,
    key: _Path | None = None,
    master_key: _Path | None = None,
    trees: int = 1,
) -> Root:
    """Starts the root of a run in this process. `receivers` has the id and the address of every
    receiver that the root waits for; port 0 stands for any port. With `master_key`, the file of the
    master key, every receiver needs its node key."""

def report(directory: _Path | None = None) -> Report:
    """Reads the logs of a run (by default in the directory `run`) and judges it."""

def query(place: _Path, sql: str, *, recording: str | None = None) -> Rows:
    """Rows of a statement in SQL over the tables of a store. See `Store.query`."""
