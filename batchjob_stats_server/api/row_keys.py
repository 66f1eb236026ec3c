"""The keys of an answer's rows, and the database columns from which each is made."""

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from batchjob.runtime.times import rfc3339, to_milliseconds

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


def keys_of(column: str) -> Mapping[str, KeySource]:
    """The keys of a database column in an answer."""
    if column in _INTERNAL:
        return {}
    key = _RENAMED.get(column, column)
    if column.endswith("_time") or column == "day":
        return {
            key: KeySource((column,), to_milliseconds),
            f"{key}_rfc3339": KeySource((column,), in_rfc3339),
        }
    return {key: KeySource((column,))}


@functools.lru_cache(256)
def columns_of_keys(keys: Keys, columns: Names) -> Names:
    """The columns from which the keys are made."""
    return tuple(name for name in columns if not keys_of(name).keys().isdisjoint(keys))


def as_answer_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Every key of one row; times in epoch milliseconds, and in RFC 3339 in addition."""
    names = tuple(row)
    keys = tuple(key for name in names for key in keys_of(name))
    return dict(zip(keys, value_getter(names, keys, ())(tuple(row.values())), strict=True))


def value_getter(columns: Names, keys: Keys, computed: KeySources) -> GetValues:
    """A function that takes the values of the keys from a row with these columns.

    `computed`: keys that are not columns. A key that the rows do not have is None.
    """
    known = {key: source for name in columns for key, source in keys_of(name).items()}
    known |= dict(computed)
    unknown = KeySource(columns[:1], lambda _: None)
    sources = [known.get(key, unknown) for key in keys]
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
        return values

    return take_and_make


def _tuple_getter(places: Sequence[int]) -> Callable[[Values], tuple[Any, ...]]:
    """`itemgetter`, which returns no tuple for a single index."""
    if len(places) == 1:
        (place,) = places
        return lambda row: (row[place],)
    return itemgetter(*places)
