"""What evenfall raises. Every error says what was wrong, where, and what to do."""


class Error(Exception):
    """The base of all errors of evenfall."""

    #: Of an error of `append`: the number of rows that are appended and acknowledged.
    rows_kept: int | None = None


class SettingsError(Error, ValueError):
    """An argument, a key of the settings or a time is wrong."""


class NotFoundError(Error, LookupError):
    """A store, a recording, a table, a column or a symbol is not there."""


class StoreError(Error):
    """The store could not read or write."""


class FeedError(Error):
    """A feed file is damaged, or is of a format that is not read."""


class RunError(Error):
    """A receiver, a root or a publisher could not start, or ended."""


class TooSlowError(RunError):
    """The program took its messages too slowly, and its subscription ended."""


class QueryError(Error):
    """A statement in SQL is wrong, or the program `evenfall-query` is missing."""


class ForkedError(Error, RuntimeError):
    """The process was forked after the import, and its threads are in the parent."""
