"""The report, for people and for programs."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from batchjob_cli.doctor.finding import CheckResult

_WIDTH = 100


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
