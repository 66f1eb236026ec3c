"""Rows of the database as an answer: columns become keys, written as JSON, JSON lines or CSV.

A job has more than a hundred keys, so the work for a set of keys is done once: values that are
columns are taken in one go, and msgspec writes a struct in a quarter of the time of a dict.
`batchjob jobs` makes its rows here as well, so nothing of the web server is imported.
"""

import csv
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from batchjob.runtime.formatting import escape_formula
from batchjob.runtime.times import rfc3339, to_milliseconds

Rows = Sequence[Mapping[Any, Any]]


RowFormat = Literal["json", "ndjson", "csv"]
"""How rows are written in an answer: as a list, one object per line, or with a header line."""


_RENAMED = {"username": "user", "groupname": "group"}
_INTERNAL = {"usage_due_time"}

Names = tuple[str, ...]  # column names
Keys = tuple[str, ...]
Values = Sequence[Any]
GetValues = Callable[[Values], Values]


class KeySource(NamedTuple):
    """The columns of a key; without `make` it is the column's own value."""

    columns: Names
    make: Callable[..., Any] | None = None


KeySources = tuple[tuple[str, KeySource], ...]


in_rfc3339 = functools.lru_cache(20_000)(rfc3339)  # many rows have the same times


@functools.cache
def keys_of(column: str) -> Mapping[str, KeySource]:
    if column in _INTERNAL:
        return {}
    key = _RENAMED.get(column, column)
    if column.endswith("_time") or column == "day":
        return {
            key: KeySource((column,), to_milliseconds),
            f"{key}_rfc3339": KeySource((column,), in_rfc3339),
        }
    return {key: KeySource((column,))}


PAD_SECONDS = 60  # one or two scrape intervals, before the first sample and after the last


def window_begin(started: float | None) -> str:
    """Where the dashboards of a job begin: epoch milliseconds, or a time before now."""
    return "now-1h" if started is None else str(round((started - PAD_SECONDS) * 1000))


def window_end(started: float | None, ended: float | None) -> str:
    """Where they end: epoch milliseconds, or now."""
    return "now" if started is None or ended is None else str(round((ended + PAD_SECONDS) * 1000))


WINDOW_KEYS: KeySources = (
    ("window_from", KeySource(("start_time",), window_begin)),
    ("window_to", KeySource(("start_time", "end_time"), window_end)),
)
"""Keys of a job that are made of several columns."""


@functools.lru_cache(256)
def columns_of_keys(keys: Keys, columns: Names) -> Names:
    made_of = {name for key, source in WINDOW_KEYS if key in keys for name in source.columns}
    return tuple(
        name for name in columns if name in made_of or not keys_of(name).keys().isdisjoint(keys)
    )


def as_answer_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Every key of one row; times in epoch milliseconds, and in RFC 3339 in addition."""
    names = tuple(row)
    keys = tuple(key for name in names for key in keys_of(name))
    return dict(zip(keys, value_getter(names, keys, ())(tuple(row.values())), strict=True))


@functools.lru_cache(256)
def value_getter(columns: Names, keys: Keys, computed: KeySources) -> GetValues:
    """A function that takes the values of the keys from a row with these columns.

    `computed`: keys that are not columns. A key that the rows do not have is None.
    """
    known = {key: source for name in columns for key, source in keys_of(name).items()}
    known |= dict(computed)
    absent = [place for place, key in enumerate(keys) if key not in known]
    sources = [known.get(key, KeySource(columns[:1])) for key in keys]
    take = _tuple_getter([columns.index(source.columns[0]) for source in sources])
    makers = [
        (place, source.make, _tuple_getter([columns.index(name) for name in source.columns]))
        for place, source in enumerate(sources)
        if source.make
    ]

    def take_and_make(row: Values) -> Values:
        values = list(take(row))
        for place, make, arguments in makers:
            values[place] = make(*arguments(row))
        for place in absent:
            values[place] = None
        return values

    return take_and_make


def _tuple_getter(places: Sequence[int]) -> Callable[[Values], tuple[Any, ...]]:
    """`itemgetter`, which returns no tuple for a single index."""
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


def write_rows(
    rows: Rows, keys: Keys, form: RowFormat, computed: KeySources = ()
) -> tuple[bytes, str]:
    """Rows that have the same columns, and their media type; without rows, an empty list.

    `computed`: keys that are not columns. A key that the rows do not have is null.
    """
    lines: list[bytes] = []
    if rows:
        take = value_getter(tuple(rows[0]), keys, computed)
        write = _csv_line if form == "csv" else _json_writer(keys)
        lines = [write(take(tuple(row.values()))) for row in rows]
    if form == "csv":
        return _csv_line(keys) + b"".join(lines), "text/csv"
    if form == "ndjson":
        return b"".join(line + b"\n" for line in lines), "application/x-ndjson"
    return b"[" + b",".join(lines) + b"]", "application/json"


@functools.lru_cache(256)
def _json_writer(keys: Keys) -> Callable[[Values], bytes]:
    import msgspec  # which a list on the command line does not need

    kind, encode = msgspec.defstruct("Row", keys, gc=False), msgspec.json.Encoder().encode
    return lambda values: encode(kind(*values))


def _csv_line(values: Values) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(map(escape_formula, values))
    return out.getvalue().encode()
