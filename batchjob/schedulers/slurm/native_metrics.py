"""The metrics that slurmctld itself serves from Slurm 25.11 on (its metrics.html).

Slurm 26.05 may require authentication (slurm.conf: PrivateData, MetricsAuthUsers).
"""

import re
from collections.abc import Callable, Iterator
from math import isfinite

from batchjob.schedulers.cluster import ClusterOptions, NativeMetric
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd

_TYPE = re.compile(r"^# TYPE .*$", re.MULTILINE)
PATHS = ("jobs", "nodes", "partitions", "scheduler")
USERS_PATH = "jobs-users-accts"  # one series per user and account


def reader(options: ClusterOptions) -> Callable[[], list[NativeMetric]]:
    """The query for all of them, which may raise RestError."""
    paths = (*PATHS, USERS_PATH) if options.users else PATHS
    server = Slurmrestd(
        RestOptions(
            url=options.slurm_metrics_url,
            user=options.slurmrestd_user,
            token_file=options.slurmrestd_token_file,
            ca_file=options.slurmrestd_ca_file,
            timeout=options.timeout,
        )
    )

    def read() -> list[NativeMetric]:
        texts = (server.text(f"/{path}") for path in paths)
        return [metric for text in texts for metric in parse(text)]

    return read


def parse(text: str) -> Iterator[NativeMetric]:
    """Parse text in the OpenMetrics or Prometheus format; raises RestError for other text.

    Only names that begin with slurm_ are kept, so that none can collide with ours. Types are left
    out: all families of 26.05 are gauges, and the parser would rename the samples of counters.
    """
    # Imported here because few sites need it, and the parser takes half a megabyte.
    from prometheus_client.parser import text_string_to_metric_families

    untyped = _TYPE.sub("", text)
    try:
        for family in text_string_to_metric_families(untyped):
            samples = tuple(
                (sample.labels, sample.value)
                for sample in family.samples
                if sample.name == family.name and isfinite(sample.value)
            )
            if family.name.startswith("slurm_") and samples:
                yield NativeMetric(family.name, family.documentation, samples)
    except (ValueError, IndexError, KeyError) as error:
        raise RestError(f"not metrics: {error}") from error
