"""What can be wrong with the data or with what is asked of it: one class each, told apart by ``code``."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """A file that cannot be used, said so that its owner can repair it.

    ``code`` is one of ``missing`` (no such file), ``directory``, ``unreadable``, ``empty``, ``header_only``,
    ``no_header``, ``broken_rows``, ``encoding``, ``binary``, ``too_large``, ``too_wide``, ``broken`` (a damaged
    Parquet file), ``changed`` (while it was read), ``not_installed``, ``not_kept`` (no room). ``line`` counts from 1
    and is None where no line is to blame.
    """

    def __init__(self, code: str, message: str, path: str | Path, line: int | None = None) -> None:
        where = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(f"{where}: {message}")
        self.code = code
        self.message = message
        self.path = str(path)
        self.line = line


class QueryError(ValueError):
    """A query that cannot be answered from this table, whoever asks and however often.

    ``code`` is one of ``unknown_table``, ``unknown_column``, ``not_numeric``, ``not_time``, ``bad_value``,
    ``bad_limit``, ``no_share``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DatabaseError(RuntimeError):
    """The database failed at a query that is fine as such; ``retryable`` says whether another try may help.

    ``code`` is one of ``interrupted``, ``out_of_memory``, ``unreadable`` (no database there, or a damaged one),
    ``failed``.
    """

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
