"""`batchjob doctor`: reports what this node offers to the exporter, and what is missing.

A subject is a table of checks in one of the modules beside; `SUBJECTS` lists them. A new source of
metrics adds its checks there.
"""

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from batchjob.runtime.formatting import replace_non_utf8
from batchjob.runtime.settings import Parser
from batchjob_cli.client.table import terminal_width
from batchjob_cli.doctor import cgroups, gpus, permissions, power, schedulers
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding, run_checks
from batchjob_exporter.options import parse_settings
from collectors.jobs.discovery.site_layouts import all_layouts

_DESCRIPTION = """\
Checks what this node provides to the exporter and what is missing.

Also accepts all flags of batchjob_exporter (--config.file, --path.cgroupfs
...) and examines the node as the exporter would.

Exit status: 0 if jobs can be seen, 1 if not, 2 for wrong usage."""

SUBJECTS: Mapping[str, Checks] = {
    "cgroups": cgroups.HIERARCHY_CHECKS,
    "schedulers": schedulers.CHECKS,
    "numbers": cgroups.NUMBER_CHECKS,
    "permissions": permissions.CHECKS,
    "energy": power.CHECKS,
    "gpus": gpus.CHECKS,
    "runs": cgroups.RUN_CHECKS,
}
"""The checks below each heading of the report."""
Report = Mapping[str, Mapping[str, Finding]]
"""The findings below each heading, by the name of the check."""
_WIDTH = 100


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="batchjob doctor",
        description=_DESCRIPTION,
        usage="batchjob doctor [FLAG OF batchjob_exporter ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _, exporter_flags = parser.parse_known_args(arguments)
    chosen = parse_settings(exporter_flags)
    options = {entry.name: of_entry for entry, of_entry in chosen.collectors}
    node = ExaminedNode(
        chosen.host,
        # The site's own layouts come first, as in the exporter.
        all_layouts(options["jobs"].layouts if "jobs" in options else ()),
        options,
    )
    visible = jobs_visible(node)
    # cgroup paths may contain any bytes
    sys.stdout.write(replace_non_utf8(as_text(examine(node), visible)))
    return 0 if visible else 1


def examine(node: ExaminedNode) -> Report:
    return {name: run_checks(node, checks) for name, checks in SUBJECTS.items()}


def jobs_visible(node: ExaminedNode) -> bool:
    """Whether some scheduler's tree is in a hierarchy that can be read."""
    return bool(node.survey.trees or node.survey.jobs)


def as_text(report: Report, jobs_visible: bool) -> str:
    """A block of lines for each subject, and a final line."""
    width = max((len(name) for findings in report.values() for name in findings), default=0)
    lines: list[str] = []
    for subject, findings in report.items():
        if findings:
            rows = (line for row in findings.items() for line in _result_lines(*row, width))
            lines += [subject, *rows, ""]
    results = Counter(each.result for findings in report.values() for each in findings.values())
    verdict = "Jobs can be seen" if jobs_visible else "No jobs can be seen"
    shown = ", ".join(f"{results[result]} {result}" for result in ("ok", "warning", "missing"))
    return "\n".join([*lines, *_wrap(f"{verdict} on this node ({shown}).", ""), ""])


def _result_lines(name: str, finding: Finding, width: int) -> Iterator[str]:
    head = f"  {finding.result:<7}  {name:<{width}}  "
    yield from _wrap(finding.seen, head)
    if finding.advice and finding.result != "ok":
        yield from _wrap(finding.advice, f"{'':<{len(head)}}-> ")


def _wrap(text: str, head: str) -> list[str]:
    return textwrap.wrap(
        text,
        min(_WIDTH, terminal_width() or _WIDTH),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,  # commands and paths must stay intact for copying
        break_on_hyphens=False,
    )
