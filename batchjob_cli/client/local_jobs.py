"""Lists of jobs from this machine's database, without a server.

The rows are those of the API's list of jobs: keys, order and filters are the server's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine

from batchjob.runtime.settings import SettingsError, suggested
from batchjob_cli.client.connect import Parameters
from batchjob_cli.client.local_database import opened
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_rows import NAMES, numbered
from batchjob_stats_db.queries.paging import SORTS, SortOrder, TooManyError, numbers
from batchjob_stats_server.api.row_keys import keys_of, taker
from batchjob_stats_server.api.windows import MADE

_KEYS = (*(key for name in NAMES for key in keys_of(name)), *(key for key, _ in MADE))
_SORTS = {"user" if name == "username" else name: name for name in SORTS}


def job_pages(data: Path, parameters: Parameters, most: int) -> Iterator[Sequence[Any]]:
    """Pages of jobs, at most `most` jobs in total; raises SettingsError."""
    order, which = _order(str(parameters.get("sort", "-start_time"))), _filter(parameters)
    keys = str(parameters["fields"]).split(",") if "fields" in parameters else _KEYS
    with opened(data) as engine:
        try:
            yield from _pages(engine, which, order, tuple(keys), most)
        except TooManyError as error:
            raise SettingsError(str(error)) from error


def _pages(
    engine: Engine, which: Filter, order: SortOrder, keys: tuple[str, ...], most: int
) -> Iterator[Sequence[Any]]:
    take = taker(NAMES, keys, MADE)
    after = None
    with engine.connect() as db:
        while most > 0:
            found = numbers(db, EVERYTHING, min(most, 1000), which, after, order=order)
            rows = numbered(db, found.ids)
            yield [dict(zip(keys, take([row[n] for n in NAMES]), strict=True)) for row in rows]
            most -= len(rows)
            after = found.more
            if after is None:
                return


def _filter(parameters: Parameters) -> Filter:
    given = {name: value for name, value in parameters.items() if name in Filter._fields}
    running = given.pop("running", None) == "true"
    return Filter(
        **given,
        states=tuple(parameters.get("state", ())),
        state_words=tuple(parameters.get("state_word", ())),
        running=running,
    )


def _order(text: str) -> SortOrder:
    key = text.lstrip("-")
    if key not in _SORTS:
        raise SettingsError(f"sort: unknown key {text!r}{suggested(key, tuple(_SORTS))}")
    return SortOrder(_SORTS[key], text.startswith("-"))
