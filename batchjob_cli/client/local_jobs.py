"""Lists of jobs from this machine's database, without a server.

The rows are those of the API's list of jobs: keys, order and filters are the server's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine

from batchjob.runtime.settings import SettingsError, suggest_names
from batchjob_cli.client.connect import Parameters
from batchjob_cli.client.local_database import open_database
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_rows import COLUMN_NAMES, rows_by_ids
from batchjob_stats_db.queries.paging import SORTS, SortOrder, TooManyError, find_ids
from batchjob_stats_server.api.row_keys import keys_of, value_getter
from batchjob_stats_server.api.windows import COMPUTED_KEYS

_KEYS = (
    *(key for name in COLUMN_NAMES for key in keys_of(name)),
    *(key for key, _ in COMPUTED_KEYS),
)
_SORTS = {"user" if name == "username" else name: name for name in SORTS}


def job_pages(data: Path, parameters: Parameters, limit: int) -> Iterator[Sequence[Any]]:
    """Pages of jobs, at most `limit` jobs in total; raises SettingsError."""
    order = _parse_order(str(parameters.get("sort", "-start_time")))
    which = _build_filter(parameters)
    keys = str(parameters["fields"]).split(",") if "fields" in parameters else _KEYS
    with open_database(data) as engine:
        try:
            yield from _read_pages(engine, which, order, tuple(keys), limit)
        except TooManyError as error:
            raise SettingsError(str(error)) from error


def _read_pages(
    engine: Engine, which: Filter, order: SortOrder, keys: tuple[str, ...], limit: int
) -> Iterator[Sequence[Any]]:
    take_keys = value_getter(COLUMN_NAMES, keys, COMPUTED_KEYS)
    cursor = None
    with engine.connect() as db:
        while limit > 0:
            found = find_ids(db, EVERYTHING, min(limit, 1000), which, cursor, order=order)
            rows = rows_by_ids(db, found.ids)
            yield [
                dict(zip(keys, take_keys([row[n] for n in COLUMN_NAMES]), strict=True))
                for row in rows
            ]
            limit -= len(rows)
            cursor = found.more
            if cursor is None:
                return


def _build_filter(parameters: Parameters) -> Filter:
    given = {name: value for name, value in parameters.items() if name in Filter._fields}
    running = given.pop("running", None) == "true"
    return Filter(
        **given,
        states=tuple(parameters.get("state", ())),
        state_words=tuple(parameters.get("state_word", ())),
        running=running,
    )


def _parse_order(text: str) -> SortOrder:
    key = text.lstrip("-")
    if key not in _SORTS:
        raise SettingsError(f"sort: unknown key {text!r}{suggest_names(key, tuple(_SORTS))}")
    return SortOrder(_SORTS[key], text.startswith("-"))
