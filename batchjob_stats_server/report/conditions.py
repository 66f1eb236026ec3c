"""Conditions of rules: `peak_memory_bytes >= 95 % * memory_limit_bytes`, and `all`, `any` of these.

Only comparisons of named quantities are evaluated. An unknown quantity makes a condition unknown,
which is neither true nor false.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Value = float | str | None
Values = Mapping[str, Value]

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
# The kind of quantity that a unit is for, and its factor.
_UNITS: Mapping[str, tuple[str, float]] = {
    "%": ("ratio", 0.01),
    "s": ("seconds", 1),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "d": ("seconds", 86400),
    "MiB": ("bytes", 1 << 20),
    "GiB": ("bytes", 1 << 30),
    "kWh": ("joules", 3.6e6),
}
_COMPARISON = re.compile(r"([a-z]\w*) (<=|>=|<|>|==|!=) (.+)", re.ASCII)
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(?: ?(%|[A-Za-z]+))?", re.ASCII)
_MULTIPLE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)( %)? \* ([a-z]\w*)", re.ASCII)
_WORD = re.compile(r"[A-Z][A-Z_]*|yes|no")


class ConditionError(ValueError):
    """The error in a condition, in one line."""


class Comparison(NamedTuple):
    """A quantity compared with a number, a word, or a multiple of another quantity."""

    text: str
    name: str
    compare: Callable[[Any, Any], bool]
    constant: float | str  # or the factor of `other`
    other: str = ""

    def holds(self, values: Values) -> bool | None:
        """None: a quantity is not known."""
        left, right = values[self.name], values[self.other] if self.other else self.constant
        if left is None or right is None:
            return None
        if self.other:
            right = float(self.constant) * float(right)
        return self.compare(left, right)

    def comparisons(self) -> Iterator["Comparison"]:
        """Itself."""
        yield self


class ConditionGroup(NamedTuple):
    """All, or any, of several conditions."""

    every: bool
    parts: tuple["Condition", ...]

    def holds(self, values: Values) -> bool | None:
        """None: it depends on a quantity that is not known."""
        found = [part.holds(values) for part in self.parts]
        decisive = not self.every
        if decisive in found:
            return decisive
        return None if None in found else self.every

    def comparisons(self) -> Iterator[Comparison]:
        """All that is in it."""
        for part in self.parts:
            yield from part.comparisons()


Condition = Comparison | ConditionGroup
ALWAYS = ConditionGroup(True, ())


def parse(raw: Any, units: Mapping[str, str]) -> Condition:
    """A condition from YAML: a comparison, a list (all of it), {all: []} or {any: []}.

    `units` has the known quantities; raises ConditionError.
    """
    if isinstance(raw, str):
        return _comparison(raw, units)
    if isinstance(raw, list):
        raw = {"all": raw}
    if isinstance(raw, dict) and len(raw) == 1 and (word := next(iter(raw))) in ("all", "any"):
        parts = raw[word]
        if isinstance(parts, list) and parts:
            return ConditionGroup(word == "all", tuple(parse(part, units) for part in parts))
    raise ConditionError(
        f"expected a comparison, or all: or any: with a list of them, got {str(raw)[:80]!r}"
    )


def _comparison(text: str, units: Mapping[str, str]) -> Comparison:
    match = _COMPARISON.fullmatch(text.strip())
    if not match:
        raise ConditionError(f"expected QUANTITY OPERATOR VALUE, got {text[:80]!r}")
    name, sign, right = match.groups()
    unit = _unit(name, units)
    compare = _OPERATORS[sign]
    if unit == "word":
        if not _WORD.fullmatch(right) or sign not in ("==", "!="):
            raise ConditionError(f"{name} is a word: expected == or != and a word, got {text!r}")
        return Comparison(text, name, compare, right)
    if found := _NUMBER.fullmatch(right):
        return Comparison(text, name, compare, _number(found, name, unit))
    if found := _MULTIPLE.fullmatch(right):
        factor = float(found[1]) * (0.01 if found[2] else 1)
        return _of_two(text, name, compare, factor, found[3], units)
    if right in units:
        return _of_two(text, name, compare, 1.0, right, units)
    raise ConditionError(
        f"{text!r}: expected a number, a quantity, or NUMBER * QUANTITY, got {right!r}"
    )


def _of_two(
    text: str, name: str, compare: Callable[[Any, Any], bool], factor: float, other: str,
    units: Mapping[str, str],
) -> Comparison:  # fmt: skip
    if _unit(other, units) != _unit(name, units):
        raise ConditionError(f"{text!r}: {name} and {other} have different units")
    return Comparison(text, name, compare, factor, other)


def _unit(name: str, units: Mapping[str, str]) -> str:
    if name not in units:
        raise ConditionError(f"unknown quantity {name!r}; known are {', '.join(units)}")
    return units[name]


def _number(found: re.Match[str], name: str, unit: str) -> float:
    number, given = float(found[1]), found[2]
    if given is None:
        return number
    if given not in _UNITS:
        raise ConditionError(f"unknown unit {given!r}; known are {', '.join(_UNITS)}")
    kind, factor = _UNITS[given]
    if kind != unit:
        raise ConditionError(f"{name} is in {unit}, not in {given}")
    return number * factor
