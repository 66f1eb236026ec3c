"""The metrics that slurmctld itself exposes (Slurm 25.11 and later: its metrics.html).

All of them are gauges in 26.05. They are read by line, and keep their names and labels as they
are: a parser of families renames counters without `_total`, and the exporter has none installed.
"""

import logging
import re
from collections.abc import Callable

from batchjob.runtime.log import LogOnce
from batchjob.schedulers.cluster import NativeMetric
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd

_PATHS = ("jobs", "nodes", "partitions", "scheduler", "jobs-users-accts")
_PER_USER = "slurm_user_"
_HELP = re.compile(r"# HELP (\w+) (.*)")
_LABELS = r'\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\}'
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|Inf|NaN))(?!\S)"
# Only names of Slurm: no other may stand among our own.
_SAMPLE = re.compile(rf"(slurm_\w+)(?:{_LABELS})? {_NUMBER}", re.ASCII)

log = logging.getLogger(__name__)


def native_reader(options: RestOptions, users: bool) -> Callable[[], dict[str, NativeMetric]]:
    """The query for all five paths, which may raise RestError; `users`: also series of users."""
    server, log_once = Slurmrestd(options), LogOnce(log)

    def read() -> dict[str, NativeMetric]:
        metrics: dict[str, NativeMetric] = {}
        for path in _PATHS:
            known = len(metrics)
            invalid = _parse(server.text(f"/{path}"), metrics)
            if invalid and len(metrics) == known:
                raise RestError(f"{options.url}/{path}: expected metrics, got {invalid[0][:60]!r}")
            if invalid:
                message = "%s/%s: expected samples of slurm_*, left out %.80r"
                log_once.warning(path, message, options.url, path, invalid[0])
        return {k: v for k, v in metrics.items() if users or not k.startswith(_PER_USER)}

    return read


def _parse(text: str, metrics: dict[str, NativeMetric]) -> list[str]:
    """Add the samples of a text in the OpenMetrics or Prometheus format; returns invalid lines."""
    helps: dict[str, str] = {}
    invalid = []
    for line in text.split("\n"):
        if described := _HELP.match(line):
            helps[described[1]] = described[2]
        elif sample := _SAMPLE.match(line):
            name, labels, value = sample.groups("")
            _, samples = metrics.setdefault(name, (helps.get(name, ""), {}))
            samples[labels] = float(value)
        elif line.strip() and not line.startswith("#"):
            invalid.append(line)
    return invalid
