"""The one reader of pairs of names and values: of accounting logs, commands' output and JSON."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class DamagedPairs(dict[str, T]):
    """Values by name, of which the names in `repeated` stood twice."""

    repeated: tuple[str, ...] = ()


def unique_pairs(pairs: Sequence[tuple[str, T]], leading: Collection[str] = ()) -> dict[str, T]:
    """Values by name; DamagedPairs, if a name stands twice, which then has no value.

    Schedulers do not escape all that users write, so one of two values may be a user's. Of the
    `leading` names, which the scheduler writes before any text of a user, the first value counts.
    """
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    counts = Counter(name for name, _ in pairs)
    repeated = tuple(name for name, count in counts.items() if count > 1)
    first = dict(reversed(pairs))
    wanted = {name: first[name] for name in counts if counts[name] == 1 or name in leading}
    if (seen := _seen.get()) is not None:
        seen += repeated
    return damaged(wanted, repeated)


def repeated_names(values: Mapping[str, T]) -> tuple[str, ...]:
    return values.repeated if isinstance(values, DamagedPairs) else ()


def damaged(values: Mapping[str, T], repeated: tuple[str, ...]) -> dict[str, T]:
    """The values, made from pairs in which these names stood twice."""
    if not repeated:
        return dict(values)
    found = DamagedPairs(values)
    found.repeated = repeated
    return found


_seen: ContextVar[list[str] | None] = ContextVar("_seen", default=None)


@contextmanager
def noting_repeated_names() -> Iterator[list[str]]:
    """The names that stand twice in what this thread reads meanwhile."""
    names: list[str] = []
    token = _seen.set(names)
    try:
        yield names
    finally:
        _seen.reset(token)
