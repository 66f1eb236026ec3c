"""Names and values from a scheduler's answer, in which a name may stand only once."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeVar

T = TypeVar("T")


def unique_pairs(
    pairs: Sequence[tuple[str, T]], leading: Collection[str] = ()
) -> tuple[dict[str, T], tuple[str, ...]]:
    """Values by name, without names that stand twice, and those names.

    Schedulers do not escape all that users write, so one of two values may be a user's. Of the
    `leading` names, which the scheduler writes before any text of a user, the first value counts.
    """
    values = dict(pairs)
    if len(values) == len(pairs):
        return values, ()
    counts = Counter(name for name, _ in pairs)
    repeated = tuple(name for name, count in counts.items() if count > 1)
    for name in repeated:
        del values[name]
    first = dict(reversed(pairs))
    return values | {name: first[name] for name in leading if name in repeated}, repeated
