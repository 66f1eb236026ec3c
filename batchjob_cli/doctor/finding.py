"""A check of the node and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from batchjob.schedulers import registry
from batchjob.schedulers.cluster import read_command_lines
from batchjob.schedulers.layout import Layout
from batchjob_cli.doctor.survey import Survey, survey
from collectors.host import Host

Result = Literal["ok", "warning", "missing"]


class Finding(NamedTuple):
    """What was found, and the change that would help."""

    result: Result  # warning: some numbers are missing; missing: the whole source is
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class ExaminedNode:
    """The machine to be checked, and how the exporter is to run on it."""

    host: Host = field(default_factory=Host)
    layouts: tuple[Layout, ...] = field(default_factory=registry.layouts)
    listen: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the enabled collectors, by name

    @cached_property
    def survey(self) -> Survey:
        """The cgroup trees, walked once."""
        return survey(self.host, self.layouts)

    @cached_property
    def slurm_settings(self) -> Mapping[str, str]:
        """What `scontrol show config` prints; empty without Slurm or its controller."""
        lines = read_command_lines(("scontrol", "show", "config"))
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}


class Check(NamedTuple):
    """A row of a subject's table. `examine` returns None if the check does not apply."""

    name: str
    examine: Callable[[ExaminedNode], Finding | None]


class CheckResult(NamedTuple):
    """A row of the report."""

    subject: str
    name: str
    finding: Finding


def run_checks(node: ExaminedNode, subject: str, checks: tuple[Check, ...]) -> list[CheckResult]:
    """Run all checks of a subject."""
    findings = ((check.name, _examine(check, node)) for check in checks)
    return [
        CheckResult(subject, name, finding) for name, finding in findings if finding is not None
    ]


def _examine(check: Check, node: ExaminedNode) -> Finding | None:
    try:
        return check.examine(node)
    except Exception as error:  # an error in one check must not hide the others' results
        return Finding("warning", f"could not be examined: {type(error).__name__}: {error}")


def read_text(path: str) -> str | None:
    """A file's text without the final line end, at most 1 MiB; None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:
        return None
