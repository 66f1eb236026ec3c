"""A user's selector of series, from the syntax tree."""

import re
from typing import NamedTuple

import promql_parser as ast

from batchjob_stats_db.timeseries.promql import promql_string
from batchjob_stats_server.promql.growth import Growth
from batchjob_stats_server.promql.query_limits import Malformed, quote
from batchjob_stats_server.promql.scan import ScannedQuery

# Pairs, since members of the parser's enums are not hashable.
_OPERATORS = (
    (ast.MatchOp.Equal, "="),
    (ast.MatchOp.NotEqual, "!="),
    (ast.MatchOp.Re, "=~"),
    (ast.MatchOp.NotRe, "!~"),
)
# Metrics that belong to no user and reveal nothing about jobs.
PUBLIC_METRICS = frozenset(
    {"batchjob_emission_factor_grams_per_kilowatt_hour", "batchjob_emission_factor_age_seconds"}
)

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# `or` joins matchers in VictoriaMetrics; the other two select a tenant of its cluster version.
_RESERVED = frozenset({"or", "vm_account_id", "vm_project_id"})


class Selector(NamedTuple):
    """Its matchers in PromQL; its name is one of them, since a name may be a keyword."""

    matchers: tuple[str, ...]
    names: frozenset[str]  # metric names that it selects with `=`
    clusters: frozenset[str]  # the same of the label `cluster`
    users: frozenset[str]
    jobids: frozenset[str]

    @classmethod
    def read(cls, node: ast.VectorSelector, scanned: ScannedQuery, growth: Growth) -> "Selector":
        """Raises Malformed for labels and matchers that are not allowed, TooLarge for a regex."""
        if node.matchers.or_matchers:
            raise Malformed("matchers joined by `or` are not allowed: use `or` between selectors")
        found = [("__name__", "=", scanned.string(node.name))] if node.name else []
        for each in node.matchers.matchers:
            operator = next(text for op, text in _OPERATORS if op == each.op)
            value = scanned.string(each.value)
            if operator in ("=~", "!~"):
                growth.check_regex(value)
            found.append((_check_label(scanned.string(each.name)), operator, value))
        return cls(
            tuple(f"{label}{operator}{promql_string(value)}" for label, operator, value in found),
            *(
                frozenset(value for *matched, value in found if matched == [label, "="])
                for label in ("__name__", "cluster", "user", "jobid")
            ),
        )

    def is_public(self) -> bool:
        """Whether it matches only public families: matchers can only narrow it."""
        return not self.names.isdisjoint(PUBLIC_METRICS)


def _check_label(name: str) -> str:
    # Some servers interpret __graphite__, __tenant_id__ and the like as commands, not as labels.
    if name != "__name__" and (name.startswith("__") or name.lower() in _RESERVED):
        raise Malformed(f"label {quote(name)} is not allowed in a selector")
    return label_name(name)


def label_name(label: str) -> str:
    """A label name that every server can write; raises Malformed."""
    if not _LABEL.fullmatch(label):
        raise Malformed(f"label {quote(label)}: expected letters, digits and _")
    return label
