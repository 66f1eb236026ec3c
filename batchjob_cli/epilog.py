"""`batchjob epilog`: what a node's exporter knows of a job, for the last lines of its output.

It asks the exporter of its own node only, which knows no other node and not the end of the job.
"""

import argparse
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from batchjob.quantities import job
from batchjob.quantities.energy import ENERGY_JOULES
from batchjob.quantities.gpu import (
    JOB_GPU_BUSY_SECONDS,
    JOB_GPU_MEMORY_PEAK,
    JOB_GPU_OBSERVED_SECONDS,
)
from batchjob.runtime.formatting import digits, energy, format_clock, share, size, to_printable
from batchjob.runtime.http_client import FetchError, fetch
from batchjob.runtime.settings import Parser, SettingsError
from batchjob.runtime.times import format_exact_time
from batchjob_cli.client.problems import DONE, NotFoundError, UnreachableError
from batchjob_cli.client.table import add_zone, print_text

_SECONDS = 5.0  # the node waits for the command
_MAX_PAGE_BYTES = 64 << 20
_SERIES = re.compile(r"^(batchjob_\w+)\{(.*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


_Series = tuple[str, Mapping[str, str], float]
"""Metric, labels and value."""


def run(arguments: list[str]) -> int:
    """Print the lines; the exit status. Raises SettingsError."""
    parser = Parser(
        prog="batchjob epilog",
        description="Prints what this node's exporter has measured of a job up to now.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "id", nargs="?", metavar="JOB", help="job id; default: the job that runs the command"
    )
    parser.add_argument(
        "--exporter",
        default="http://localhost:10910",
        metavar="URL",
        help="the exporter of this node (default: http://localhost:10910)",
    )
    add_zone(parser)
    given = parser.parse_args(arguments)
    jobid = given.id or _own_jobid(os.environ)
    if not jobid:
        raise SettingsError("JOB: expected an id, since no job runs this command")
    series = [each for each in _read(given.exporter) if each[1].get("jobid") == jobid]
    if not series:
        raise NotFoundError(f"the exporter at {given.exporter} knows no job {jobid}")
    print_text("\n".join(_lines(jobid, series, given)))
    return DONE


def _own_jobid(environ: Mapping[str, str]) -> str:
    """The id of the job whose environment this is, as its scheduler writes it."""
    if jobid := environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID"):
        return jobid
    jobid, index = environ.get("LSB_JOBID", ""), environ.get("LSB_JOBINDEX", "0")
    return jobid if index == "0" else f"{jobid}[{index}]"


def _read(url: str) -> Iterator[_Series]:
    try:
        answer = fetch(f"{url.rstrip('/')}/metrics", seconds=_SECONDS, limit=_MAX_PAGE_BYTES)
    except FetchError as error:
        raise UnreachableError(f"the exporter: {error}") from error
    if answer.status != 200:
        raise UnreachableError(f"the exporter at {url}: HTTP status {answer.status}")
    for metric, labels, value in _SERIES.findall(answer.body.decode("utf-8", "replace")):
        yield metric, dict(_LABEL.findall(labels)), float(value)


def _lines(jobid: str, series: Sequence[_Series], given: argparse.Namespace) -> Iterator[str]:
    def total(metric: str, **labels: str) -> float | None:
        found = [
            value
            for name, its_labels, value in series
            if name == metric and labels.items() <= its_labels.items()
        ]
        return sum(found) if found else None

    name, now = to_printable(jobid), format_exact_time(round(time.time()), given.zone)
    yield f"batchjob: job {name} on {os.uname().nodename} up to {now}"
    yield f"  (this node only, and not final: see `batchjob seff {name}` later)"
    started, cpu, cpus = (
        total(each)
        for each in (job.START_TIME.metric.name, job.CPU_SECONDS.name, job.CPUS.metric.name)
    )
    if cpu is not None:
        elapsed = 0.0 if started is None else time.time() - started
        part = (
            f", {share(cpu / (cpus * elapsed))} of {digits(cpus)} CPUs" if cpus and elapsed else ""
        )
        yield f"  CPU time   {format_clock(cpu)}{part}"
    peak, word = total(job.MEMORY_PEAK.metric.name), "peak"
    if peak is None:
        peak, word = total(job.MEMORY_CURRENT.metric.name), "now"
    limit = total(job.MEMORY_LIMIT.metric.name)
    if peak is not None:
        yield f"  Memory     {word} {size(peak)}" + (f" of {size(limit)}" if limit else "")
    for gpu in sorted({labels["gpu"] for _, labels, _ in series if labels.get("gpu")}):
        busy = total(JOB_GPU_BUSY_SECONDS.metric.name, gpu=gpu)
        observed = total(JOB_GPU_OBSERVED_SECONDS.metric.name, gpu=gpu)
        used = total(JOB_GPU_MEMORY_PEAK.metric.name, gpu=gpu)
        words = [f"{share((busy or 0.0) / observed)} busy"] if observed else []
        words += [f"peak {size(used)}"] if used is not None else []
        yield f"  GPU {gpu:<6} {', '.join(words) or 'nothing was measured'}"
    if (joules := total(ENERGY_JOULES.metric.name)) is not None:
        yield f"  Energy     {energy(joules)}"
