"""The report: its subjects, in order, and its forms for people and for programs.

A new source of metrics adds its checks to a subject here.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from batchjob_cli.doctor import (
    cgroups,
    exporter,
    gpus,
    numbers,
    pbs_jobs,
    permissions,
    power,
    schedulers,
    slurm,
)
from batchjob_cli.doctor.finding import Check, CheckResult, ExaminedNode, run_checks

_WIDTH = 100


SUBJECTS: Mapping[str, tuple[Check, ...]] = {
    "cgroups": cgroups.CHECKS,
    "schedulers": (
        *schedulers.CHECKS, *slurm.CHECKS, schedulers.CLUSTER_CHECK, *pbs_jobs.CHECKS
    ),
    "numbers": numbers.CHECKS,
    "permissions": permissions.CHECKS,
    "energy": power.CHECKS,
    "gpus": gpus.CHECKS,
    "service": exporter.CHECKS,
}  # fmt: skip
"""The checks below each heading of the report."""


def examine(node: ExaminedNode) -> list[CheckResult]:
    """Run all checks."""
    return [each for name, checks in SUBJECTS.items() for each in run_checks(node, name, checks)]


def jobs_visible(node: ExaminedNode) -> bool:
    """Whether some scheduler's tree is in a hierarchy that can be read."""
    return bool(node.survey.trees or node.survey.jobs)


def as_text(results: Sequence[CheckResult], jobs_visible: bool) -> str:
    """A block of lines for each subject, and a final line."""
    width = max((len(each.name) for each in results), default=0)
    lines: list[str] = []
    for subject, rows in groupby(results, key=lambda each: each.subject):
        lines += [subject, *(line for row in rows for line in _result_lines(row, width)), ""]
    return "\n".join([*lines, _summary(results, jobs_visible), ""])


def _result_lines(row: CheckResult, width: int) -> Iterator[str]:
    result, seen, advice = row.finding
    head = f"  {result:<7}  {row.name:<{width}}  "
    yield from _wrap(seen, head)
    if advice and result != "ok":
        yield from _wrap(advice, f"{'':<{len(head)}}-> ")


def _wrap(text: str, head: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,  # commands and paths must stay intact for copying
        break_on_hyphens=False,
    )


def _summary(results: Sequence[CheckResult], jobs_visible: bool) -> str:
    counts = {
        result: sum(each.finding.result == result for each in results)
        for result in ("ok", "warning", "missing")
    }
    verdict = "Jobs can be seen" if jobs_visible else "No jobs can be seen"
    shown = ", ".join(f"{count} {result}" for result, count in counts.items())
    return f"{verdict} on this node ({shown})."


def as_json(results: Sequence[CheckResult], jobs_visible: bool) -> str:
    """`{"jobs_visible": ..., "checks": [{subject, name, result, seen, advice}]}`."""
    checks = [
        {"subject": each.subject, "name": each.name, **each.finding._asdict()} for each in results
    ]
    return json.dumps({"jobs_visible": jobs_visible, "checks": checks}, indent=1) + "\n"
