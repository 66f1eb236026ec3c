"""The subjects of the report, in order. A new source of metrics adds its module here."""

from typing import NamedTuple

from batchjob_cli.doctor import (
    bmc,
    cgroups,
    cluster,
    emissions,
    exporter,
    gpus,
    job_energy,
    numbers,
    pbs_jobs,
    permissions,
    power,
    schedulers,
    slurm,
)
from batchjob_cli.doctor.finding import Check, CheckResult, ExaminedNode, run_checks


class Subject(NamedTuple):
    """A heading of the report and the checks below it."""

    name: str
    checks: tuple[Check, ...]


SUBJECTS = (
    Subject("cgroups", cgroups.CHECKS),
    Subject(
        "schedulers",
        (*schedulers.CHECKS, *slurm.CHECKS, *cluster.CHECKS, *pbs_jobs.CHECKS),
    ),
    Subject("numbers", numbers.CHECKS),
    Subject("permissions", permissions.CHECKS),
    Subject("energy", (*power.CHECKS, *bmc.CHECKS, *job_energy.CHECKS, *emissions.CHECKS)),
    Subject("gpus", gpus.CHECKS),
    Subject("service", exporter.CHECKS),
)


def examine(node: ExaminedNode) -> list[CheckResult]:
    """Run all checks."""
    return [each for subject in SUBJECTS for each in run_checks(node, subject.name, subject.checks)]


def jobs_visible(node: ExaminedNode) -> bool:
    """Whether some scheduler's tree is in a hierarchy that can be read."""
    return bool(node.survey.trees or node.survey.jobs)
