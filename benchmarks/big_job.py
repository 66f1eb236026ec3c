"""Memory and queries that measuring one large job takes, with counters that were reset.

    python -m benchmarks.big_job --nodes 200 --hours 24 --reset-nodes 1 [--store prometheus]

A VictoriaMetrics or Prometheus of its own is filled with the series of one job, and the job is
measured in a process of its own, whose peak memory is the result. promtool takes minutes for what
VictoriaMetrics imports in seconds.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.batchjob_stats_db.tsdb import run_prometheus, run_victoria_metrics

START = 1_775_300_000
INTERVAL = 30

_COUNTERS = [
    ("cpu_seconds_total", [{"mode": "user"}, {"mode": "system"}]),
    ("cpu_throttled_seconds_total", [{}]),
    ("io_read_bytes_total", [{}]),
    ("io_written_bytes_total", [{}]),
    ("page_faults_total", [{"kind": "major"}, {"kind": "minor"}]),
    ("oom_kills_total", [{}]),
    ("pressure_waiting_seconds_total", [{"resource": r} for r in ("cpu", "memory", "io")]),
    (
        "energy_joules_total",
        [{"component": c, "kind": k} for c in ("host", "gpu") for k in ("active", "idle")],
    ),
    ("emissions_grams_total", [{"provider": p} for p in ("rte", "owid")]),
]  # fmt: skip
_GAUGES = ["memory_current_bytes", "memory_peak_bytes", "memory_working_set_bytes", "threads"]
JOB_METRICS = [*_COUNTERS, *((gauge, [{}]) for gauge in _GAUGES)]
"""Each metric of a job, with the labels of its series."""

_MEASURE = """
import json, os, sys
from tests.helpers.measured import measure
from batchjob_stats_db.measure.job_usage import (JobToMeasure)
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
import batchjob_stats_db.poller.poller
from benchmarks.measure import resident_bytes

url, start, end, nodes = sys.argv[1], *map(int, sys.argv[2:5])
history = Prometheus(Endpoint(url))
span = JobWindow("c1", "1", start, end + 60, end=end, nodes=nodes)
before = resident_bytes(os.getpid(), peak=True)
job = JobToMeasure(1, "c1", "1", "alice", 1001, start, end, nodes, nodes * 8, span)
(usage,) = measure(history, [job], 30.0)
peak = resident_bytes(os.getpid(), peak=True)
print(json.dumps({"before_mb": before / 1e6, "peak_mb": peak / 1e6, "caveats": usage.caveats,
                  "cpu_seconds": usage.values["user_cpu_seconds"]}))
"""


class Series(NamedTuple):
    """One series of the job: its labels with its name, and a value at each interval."""

    labels: dict[str, str]
    values: list[int]


def series(nodes: int, samples: int, reset_nodes: int) -> Iterator[Series]:
    """All of the job's; each counter grows by 3 from sample to sample."""
    half = samples // 2
    grown = [3 * n for n in range(1, samples + 1)]
    fell = [3 * (n if n <= half else n - half) for n in range(1, samples + 1)]
    for node in range(nodes):
        values = fell if node < reset_nodes else grown
        for metric, variants in JOB_METRICS:
            for labels in variants:
                name = {"__name__": f"batchjob_job_{metric}", "cluster": "c1", "jobid": "1"}
                name |= {"instance": f"n{node:05}:10910", "manager": "slurm", "user": "alice"}
                yield Series(name | labels, values)


def _times(samples: int) -> range:
    return range(START + INTERVAL, START + INTERVAL * samples + 1, INTERVAL)


@contextmanager
def victoria_metrics(found: Iterator[Series], samples: int) -> Iterator[str]:
    """The URL of a VictoriaMetrics that has the series, imported some megabytes at a time."""
    times = [1000 * at for at in _times(samples)]
    with run_victoria_metrics([], "-search.maxUniqueTimeseries=1000000") as store:
        for part in _parts(found, 200):
            each = [
                {"metric": one.labels, "values": one.values, "timestamps": times} for one in part
            ]
            _post(f"{store.url}/api/v1/import", "\n".join(map(json.dumps, each)))
        _post(f"{store.url}/internal/force_flush", "")
        time.sleep(1)
        yield store.url


def _parts(found: Iterator[Series], size: int) -> Iterator[list[Series]]:
    while part := list(itertools.islice(found, size)):
        yield part


def _post(url: str, body: str) -> None:
    urllib.request.urlopen(url, body.encode(), timeout=60).close()


@contextmanager
def prometheus(found: Iterator[Series], samples: int) -> Iterator[str]:
    """The URL of a Prometheus that has the series in its blocks."""
    lines = []
    for one in found:
        labels = ",".join(f'{k}="{v}"' for k, v in one.labels.items() if k != "__name__")
        name = f"{one.labels['__name__']}{{{labels}}}"
        lines += [f"{name} {v} {at}" for v, at in zip(one.values, _times(samples), strict=True)]
    with run_prometheus(lines) as store:
        yield store.url


STORES = {"victoria-metrics": victoria_metrics, "prometheus": prometheus}


def measured(store: str, nodes: int, hours: float, reset_nodes: int) -> dict[str, object]:
    """Peak memory, CPU seconds found, and time taken."""
    samples = int(hours * 3600 / INTERVAL)
    with STORES[store](series(nodes, samples, reset_nodes), samples) as url:
        begun = time.monotonic()
        end = START + INTERVAL * samples
        argv = [sys.executable, "-c", _MEASURE, url, str(START), str(end), str(nodes)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        seconds = time.monotonic() - begun
    return {**json.loads(done.stdout), "seconds": seconds, "expected": 3.0 * samples * nodes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--reset-nodes", type=int, default=1)
    parser.add_argument("--store", choices=STORES, default="victoria-metrics")
    given = parser.parse_args()
    found = measured(given.store, given.nodes, given.hours, given.reset_nodes)
    print(json.dumps(found, indent=1))
