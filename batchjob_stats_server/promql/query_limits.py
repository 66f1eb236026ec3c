"""Limits of a query, and the errors for refused ones."""

import re
from collections.abc import Collection, Sequence
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


# In RE2, {3}, {3,} and {3,8} are repetitions; {,8} is not.
_REPETITION = re.compile(r"(?P<before>.?)\{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}", re.DOTALL)
_JOB_LABELS = frozenset({"instance", "jobid"})


@dataclass
class Growth:
    """Counts of what grows faster than a query's length; a method raises TooLarge for too many.

    Each `label_replace` with eight `$1` makes a label eight times as long, and so does
    `label_join`; `count_values` makes a series for each value; labels copied by `group_left` make
    one for each pair in VictoriaMetrics; a regular expression with counts is as large as the
    product of its counts.
    """

    limits: QueryLimits
    _label_functions: int = 0
    _references: int = 0
    _repetitions: int = 0
    _copies: int = 0
    _subqueries: int = 0

    def check_label_function(self, name: str, texts: Sequence[str]) -> None:
        """Check `label_replace` or `label_join` with these strings.

        Counted in the whole query, not along a path: however they are nested, labels grow at most
        by the product of the references.
        """
        limits = self.limits
        self._label_functions += 1
        if name == "label_replace":
            self.check_regex(texts[-1])
            self._references += texts[1].count("$")
        else:
            self._references += len(texts) - 2
        if self._label_functions > limits.label_functions:
            raise TooLarge(
                f"label_replace, label_join: at most {limits.label_functions} in a query"
            )
        if self._references > limits.label_references:
            raise TooLarge(
                "label_replace, label_join: at most "
                f"{limits.label_references} references ($1) and joined labels in a query"
            )
        longest = max(map(len, texts[:-1] if name == "label_replace" else texts))
        if longest > limits.label_characters:
            raise TooLarge(
                f"{name}: a string of {longest} characters: at most {limits.label_characters}"
            )

    def check_regex(self, pattern: str) -> None:
        for repetition in _REPETITION.finditer(pattern):
            if repetition["before"] in (")", "}"):
                raise TooLarge(
                    f"regular expression {quote(pattern)}: expected a count such as {{3}} "
                    "after a character or a class, not after a group"
                )
            longest = max(len(repetition["least"]), len(repetition["most"] or ""))
            most = self.limits.repetitions + 1
            if longest < 5:
                most = max(int(repetition["least"]), int(repetition["most"] or 0))
            self._repetitions += most
        if self._repetitions > self.limits.repetitions:
            raise TooLarge(
                "regular expressions: counts such as {3} add up to at most "
                f"{self.limits.repetitions} in a query"
            )

    def check_count_values(self, window: QueryWindow) -> None:
        """Check an aggregation that makes a series for each value that occurs."""
        if count_evaluations(window) > 1:
            raise TooLarge("count_values: only at one time, not over a range or in a subquery")

    def check_copied_labels(self, matched_on: Collection[str], from_named_series: bool) -> None:
        """Check labels of one side that `group_left` or `group_right` copies to the other.

        Series of one metric for one job on one node are few; otherwise their number is unknown.
        """
        if not (from_named_series and set(matched_on) >= _JOB_LABELS):
            raise TooLarge(
                "group_left, group_right: labels are copied only from a selector with a metric "
                "name, matched on (instance, jobid) at least"
            )
        self._copies += 1
        if self._copies > self.limits.copied_labels:
            raise TooLarge(
                "group_left, group_right: labels are copied at most "
                f"{self.limits.copied_labels} times in a query"
            )

    def check_range(self, seconds: float, window: QueryWindow) -> None:
        limits = self.limits
        if not 0.001 <= seconds <= limits.range_seconds:
            raise TooLarge(
                f"range of {seconds:g} s: from 1 ms to {format_days(limits.range_seconds)}"
            )
        total = seconds * count_evaluations(window)
        if total > limits.range_seconds_in_all:
            raise TooLarge(
                f"range of {seconds:g} s at {count_evaluations(window)} points: at most "
                f"{format_days(limits.range_seconds_in_all)} in all; take a longer step"
            )

    def check_subquery(self, seconds: float, step: float, window: QueryWindow) -> None:
        self.check_range(seconds, window)
        times = count_evaluations(window)
        self._subqueries += 1
        if self._subqueries > self.limits.subqueries:
            raise TooLarge(f"at most {self.limits.subqueries} subqueries in a query")
        if seconds / step * times > self.limits.subquery_points:
            raise TooLarge(
                f"subquery of {seconds / step:.0f} points at {times} points: at most "
                f"{self.limits.subquery_points} in all; take longer steps"
            )
