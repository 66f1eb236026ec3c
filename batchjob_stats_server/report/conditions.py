"""Conditions of rules: `peak_memory_bytes >= 95 % * memory_limit_bytes`, and `all`, `any` of these.

Only comparisons of named quantities are evaluated. An unknown quantity makes a condition unknown,
which is neither true nor false.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

FactValue = float | str | None
FactValues = Mapping[str, FactValue]

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


class Comparison(NamedTuple):
    """A quantity compared with a number, a word, or a multiple of another quantity."""

    text: str
    name: str
    compare: Callable[[Any, Any], bool]
    constant: float | str  # or the factor of `other`
    other: str = ""

    def holds(self, values: FactValues) -> bool | None:
        """Whether the comparison is true; None: a quantity is not known."""
        left, right = values[self.name], values[self.other] if self.other else self.constant
        if left is None or right is None:
            return None
        if self.other:
            right = float(self.constant) * float(right)
        return self.compare(left, right)

    def comparisons(self) -> Iterator["Comparison"]:
        """Only the comparison itself, as a group of one."""
        yield self


class ConditionGroup(NamedTuple):
    """All, or any, of several conditions."""

    requires_all: bool
    parts: tuple["Condition", ...]

    def holds(self, values: FactValues) -> bool | None:
        """Whether the group is true; None: it depends on a quantity that is not known."""
        found = [part.holds(values) for part in self.parts]
        decisive = not self.requires_all
        if decisive in found:
            return decisive
        return None if None in found else self.requires_all

    def comparisons(self) -> Iterator[Comparison]:
        for part in self.parts:
            yield from part.comparisons()


Condition = Comparison | ConditionGroup
ALWAYS = ConditionGroup(True, ())


def parse_condition(raw: Any, units: Mapping[str, str]) -> Condition:
    """Parse a condition from YAML: a comparison, a list (all), {all: []} or {any: []}.

    `units` has the known quantities; raises ValueError with the error in one line.
    """
    if isinstance(raw, str):
        return _parse_comparison(raw, units)
    if isinstance(raw, list):
        raw = {"all": raw}
    if isinstance(raw, dict) and len(raw) == 1 and (word := next(iter(raw))) in ("all", "any"):
        parts = raw[word]
        if isinstance(parts, list) and parts:
            return ConditionGroup(
                word == "all", tuple(parse_condition(part, units) for part in parts)
            )
    raise ValueError(
        f"expected a comparison, or all: or any: with a list of them, got {str(raw)[:80]!r}"
    )


def _parse_comparison(text: str, units: Mapping[str, str]) -> Comparison:
    match = _COMPARISON.fullmatch(text.strip())
    if not match:
        raise ValueError(f"expected QUANTITY OPERATOR VALUE, got {text[:80]!r}")
    name, sign, right = match.groups()
    unit = _unit_of(name, units)
    compare = _OPERATORS[sign]
    if unit == "word":
        if not _WORD.fullmatch(right) or sign not in ("==", "!="):
            raise ValueError(f"{name} is a word: expected == or != and a word, got {text!r}")
        return Comparison(text, name, compare, right)
    if number_match := _NUMBER.fullmatch(right):
        return Comparison(text, name, compare, _parse_number(number_match, name, unit))
    if multiple_match := _MULTIPLE.fullmatch(right):
        factor = float(multiple_match[1]) * (0.01 if multiple_match[2] else 1)
        return _compare_quantities(text, name, compare, factor, multiple_match[3], units)
    if right in units:
        return _compare_quantities(text, name, compare, 1.0, right, units)
    raise ValueError(
        f"{text!r}: expected a number, a quantity, or NUMBER * QUANTITY, got {right!r}"
    )


def _compare_quantities(
    text: str, name: str, compare: Callable[[Any, Any], bool], factor: float, other: str,
    units: Mapping[str, str],
) -> Comparison:  # fmt: skip
    if _unit_of(other, units) != _unit_of(name, units):
        raise ValueError(f"{text!r}: {name} and {other} have different units")
    return Comparison(text, name, compare, factor, other)


def _unit_of(name: str, units: Mapping[str, str]) -> str:
    if name not in units:
        raise ValueError(f"unknown quantity {name!r}; known are {', '.join(units)}")
    return units[name]


def _parse_number(match: re.Match[str], name: str, unit: str) -> float:
    number, unit_name = float(match[1]), match[2]
    if unit_name is None:
        return number
    if unit_name not in _UNITS:
        raise ValueError(f"unknown unit {unit_name!r}; known are {', '.join(_UNITS)}")
    kind, factor = _UNITS[unit_name]
    if kind != unit:
        raise ValueError(f"{name} is in {unit}, not in {unit_name}")
    return number * factor
