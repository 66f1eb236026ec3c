"""Limits of a query, and the errors for refused ones."""

from dataclasses import dataclass
from typing import NamedTuple

LONGEST_QUERY = 4096


class QueryError(ValueError):
    """A query is refused; the text is for its sender."""


class Malformed(QueryError):
    """Not PromQL, or a part of it that the gate does not accept."""


class TooLarge(QueryError):
    """A limit is exceeded."""


class NotYours(QueryError):
    """The caller's own series cannot be distinguished from those of others."""


class TooMany(QueryError):
    """The caller has too many waiting queries."""


class Unavailable(Exception):
    """There is no answer: the database is down, busy, or not as expected."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits of one query; times in seconds."""

    query_characters: int = LONGEST_QUERY
    operators: int = 256  # in a query, including matchers; also the maximum number of strings
    selectors: int = 32  # in all queries of one request
    depth: int = 64
    label_functions: int = 8  # calls of label_replace and label_join in a query
    label_references: int = 8  # references ($1) and joined labels in these
    label_characters: int = 128  # of each of their strings, except regular expressions
    copied_labels: int = 2  # uses of group_left and group_right with labels in a query
    repetitions: int = 200  # sum of all repetition counts in a query's regular expressions
    subqueries: int = 8
    subquery_points: int = 10_000_000  # of a subquery, over all points at which it is evaluated
    # Of a range, over all points at which it is read.
    range_seconds_in_all: float = 100_000 * 86400.0
    window_seconds: float = 400 * 86400.0
    range_seconds: float = 100 * 86400.0
    points: int = 11_000  # per query; Prometheus' own limit for range queries
    subquery_step_seconds: float = 60.0  # if the query does not set it
    lookback_seconds: float = 300.0  # maximum age of a sample at a point


class QueryWindow(NamedTuple):
    """The times for which an expression is evaluated, Unix seconds."""

    start: float
    end: float
    step: float = 0.0  # between two points; 0: there is only one


def check_points(window: QueryWindow, limits: QueryLimits) -> None:
    step = window.step
    if not step >= 0.001:
        raise TooLarge(f"step of {step:g} s: at least 1 ms")
    count = (window.end - window.start) / step
    if count > limits.points:
        raise TooLarge(f"{count:.0f} points: at most {limits.points}; take a longer step")


def count_evaluations(window: QueryWindow) -> int:
    return 1 + int((window.end - window.start) / window.step) if window.step else 1


def format_days(seconds: float) -> str:
    return f"{seconds / 86400:g} days"


def quote(text: str) -> str:
    """A user's text in a message, shortened."""
    return repr(text if len(text) <= 120 else text[:117] + "...")
