"""Lists of jobs from this machine's database, without a server.

The rows are those of the API's list of jobs: keys, order and filters are the server's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from batchjob.runtime.settings import SettingsError, suggest_names
from batchjob_cli.client.connect import Parameters
from batchjob_cli.client.problems import UnreachableError
from batchjob_cli.up.records import open_recorded, record_runs
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.engine import DatabaseError, reader_engine
from batchjob_stats_db.database.revision import require_current, unusable_error
from batchjob_stats_db.queries.arrays import list_jobs
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import (
    COLUMN_NAMES,
    SORTS,
    Page,
    SortOrder,
    TooManyError,
)
from batchjob_stats_server.api.rows import WINDOW_KEYS, columns_of_keys, keys_of, value_getter

_KEYS = (
    *(key for name in COLUMN_NAMES for key in keys_of(name)),
    *(key for key, _ in WINDOW_KEYS),
    "array_states",
)


@contextmanager
def open_database(data: Path) -> Iterator[Engine]:
    """The database with all runs of this machine, opened for reading; raises SettingsError."""
    try:
        recorded = open_recorded(data)
        engine = recorded or reader_engine(record_runs(data))
        try:
            if recorded is None:
                require_current(engine)
            yield engine
        except sa.exc.DBAPIError as error:
            raise unusable_error(engine.url, error) from error
        finally:
            engine.dispose()
    except DatabaseError as error:
        raise UnreachableError(str(error)) from error
    except OSError as error:
        raise UnreachableError(f"{error.filename or data}: {error.strerror or error}") from error


def job_pages(
    data: Path, parameters: Parameters, limit: int, keys: Sequence[str] = ()
) -> Iterator[Sequence[Any]]:
    """Pages of jobs with these keys (default: all), at most `limit` jobs; raises SettingsError."""
    order = _parse_order(str(parameters.get("sort", "-start_time")))
    which = _build_filter(parameters)
    if "fields" in parameters:
        keys = str(parameters["fields"]).split(",")
    with open_database(data) as engine:
        try:
            yield from _read_pages(engine, which, order, tuple(keys) or _KEYS, limit)
        except TooManyError as error:
            raise SettingsError(str(error)) from error


def _read_pages(
    engine: Engine, which: Filter, order: SortOrder, keys: tuple[str, ...], limit: int
) -> Iterator[Sequence[Any]]:
    columns, after = columns_of_keys(keys, COLUMN_NAMES), None
    with engine.connect() as db:
        while limit > 0:
            rows, after = list_jobs(db, EVERYTHING, which, order, Page(limit, after, columns))
            take_keys = value_getter(tuple(rows[0]), keys, WINDOW_KEYS) if rows else tuple
            yield [dict(zip(keys, take_keys(tuple(row.values())), strict=True)) for row in rows]
            limit -= len(rows)
            if after is None:
                return


def _build_filter(parameters: Parameters) -> Filter:
    given = {name: value for name, value in parameters.items() if name in Filter._fields}
    running, arrays_once = (given.pop(each, None) == "true" for each in ("running", "arrays_once"))
    return Filter(
        **given,
        states=tuple(parameters.get("state", ())),
        state_words=tuple(parameters.get("state_word", ())),
        running=running,
        arrays_once=arrays_once,
    )


def _parse_order(text: str) -> SortOrder:
    key = text.lstrip("-")
    if key not in SORTS:
        raise SettingsError(f"sort: unknown key {text!r}{suggest_names(key, tuple(SORTS))}")
    return SortOrder(SORTS[key], text.startswith("-"))
