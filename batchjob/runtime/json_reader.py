"""The one reader of JSON, for records, answers and files that others write.

It is also the one reader of pairs of names and values, of accounting logs and commands' output.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

MAX_BYTES = 512 * 1024 * 1024
"""Maximum size of a text that names no smaller limit."""
MAX_DEPTH = 100
"""Objects and lists within each other: far fewer than any part of Python can follow."""


def parse_json(data: bytes | str, max_bytes: int = MAX_BYTES, *, finite: bool = False) -> Any:
    """The value of a text; a byte that is not UTF-8 becomes U+FFFD.

    Raises ValueError for anything else than one value of at most `max_bytes`: for a name that
    stands twice in an object, for text that is nested too deeply, and if it must be `finite` for
    NaN and infinities.
    """
    if len(data) > max_bytes:
        raise ValueError(f"expected JSON of at most {max_bytes} bytes, got {len(data)}")
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        value = (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _of_bounded_depth(value, text)


def first_json_value(text: str, *, numbers_as_text: bool = False) -> Any:
    """The value with which a scheduler's answer begins; anything may follow.

    Schedulers' programs repeat names for several values, and do not escape all that users write: a
    name that stands twice has no value. Raises ValueError as `parse_json` does.
    """
    try:
        value = (_TEXTS if numbers_as_text else _ANSWERS).raw_decode(text)[0]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _of_bounded_depth(value, text)


def _of_bounded_depth(value: Any, text: str) -> Any:
    """The value of a text, if what walks through it later needs no more than MAX_DEPTH calls.

    It is looked at level by level, until the rest of the text has too few brackets to be too deep.
    Of a usual answer, the many lists on the last level are therefore not looked into.
    """
    left = text.count("[") + text.count("{")
    level = [value]
    for depth in range(MAX_DEPTH):
        left -= len(level)
        if not level or depth + left < MAX_DEPTH:
            return value
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise ValueError("nested too deeply")
    return value


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


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = unique_pairs(pairs)
    if repeated := repeated_names(values):
        raise ValueError(f"expected each name once, got {repeated[0]!r:.80} twice")
    return values


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"expected a finite number, got {constant}")


_ANY = json.JSONDecoder(object_pairs_hook=_refuse_repeated)
_FINITE = json.JSONDecoder(object_pairs_hook=_refuse_repeated, parse_constant=_reject)
_decoder = partial(json.JSONDecoder, object_pairs_hook=unique_pairs, strict=False)
_ANSWERS = _decoder()
_TEXTS = _decoder(parse_int=str, parse_float=str, parse_constant=str)
"""Numbers as they are written: 007 and 1e5 are names too."""
