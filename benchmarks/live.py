"""What a pass over all running jobs costs the poller: CPU time, wall time, memory, bytes written.

    python -m benchmarks.live [--jobs 1000] [--store prometheus] [--long]

A VictoriaMetrics or Prometheus of its own is filled with some minutes of the series of jobs on one
node each. A process of its own looks at all jobs from their start, and then passes over them each
minute; the last pass counts. `--long`: 10,000 jobs on 10,000 nodes, with the limits of the design.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.big_job import INTERVAL, JOB_METRICS, START, Series, prometheus, victoria_metrics

SAMPLES = 8
LONG_JOBS = 10_000
MAX_CPU_SECONDS, MAX_SECONDS, MAX_BYTES = 10.0, 30.0, 250e6

_PASSES = """
import contextlib, json, os, sqlite3, sys, time
from pathlib import Path
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.live import LiveMeasurement
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from benchmarks.measure import resident_bytes

url, folder, jobs, start = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
migrate(engine)
now = start
store = Store(engine, "c1", UsagePolicy(), lambda: now)
records = tuple(
    JobRecord("c1", str(n), start, JobState.RUNNING, "RUNNING", "sacct", user="alice", uid=1001,
              start_time=start, allocated_cpus=8, allocated_nodes=1,
              nodes=(NodeShare(f"n{n:05}", 8),))
    for n in range(jobs)
)
store.write(Batch(records, (), "", start), "sacct")
del records
live = LiveMeasurement(store, Prometheus(Endpoint(url, timeout_seconds=600)), UsagePolicy(), 30.0)
wal = Path(f"{folder}/jobs.db-wal")
for now in (start + 60, start + 120, start + 180, start + 240):
    with contextlib.closing(sqlite3.connect(f"{folder}/jobs.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cpu, begun = time.process_time(), time.monotonic()
    live.run(now)
    print(json.dumps({
        "continued": live.continued, "looked_at": live.looked_at, "written": live.written,
        "cpu_seconds": time.process_time() - cpu, "seconds": time.monotonic() - begun,
        "peak_bytes": resident_bytes(os.getpid(), peak=True), "wal_bytes": wal.stat().st_size,
    }), flush=True)
    if now == start + 120:  # the first look may take more: it is not in the limits
        Path("/proc/self/clear_refs").write_text("5")
"""


def series(jobs: int) -> Iterator[Series]:
    """All series of each job, on its own node; counters grow by 3 from sample to sample."""
    grown = [3 * n for n in range(1, SAMPLES + 1)]
    for number in range(jobs):
        shared = {
            "cluster": "c1", "jobid": str(number), "instance": f"n{number:05}:10910",
            "manager": "slurm", "user": "alice",
        }  # fmt: skip
        for metric, variants in JOB_METRICS:
            for labels in variants:
                yield Series({"__name__": f"batchjob_job_{metric}", **shared, **labels}, grown)


def passes(store: str, jobs: int, folder: str) -> list[dict[str, float]]:
    """The figures of each pass, the first being a look at every job from its start."""
    open_store = prometheus if store == "prometheus" else victoria_metrics
    with open_store(series(jobs), SAMPLES) as url:
        command = [sys.executable, "-c", _PASSES, url, folder, str(jobs), str(START)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Print the figures of each pass; 1 if the last exceeds the limits, with `--long`."""
    import tempfile

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--store", choices=("victoria_metrics", "prometheus"))
    parser.add_argument("--long", action="store_true")
    given = parser.parse_args()
    jobs, exceeded = LONG_JOBS if given.long else given.jobs, False
    for store in [given.store] if given.store else ["victoria_metrics", "prometheus"]:
        with tempfile.TemporaryDirectory() as folder:
            found = passes(store, jobs, folder)
        for each in found:
            print(store, INTERVAL, json.dumps(each))
        last = found[-1]
        exceeded |= (
            last["cpu_seconds"] > MAX_CPU_SECONDS
            or last["seconds"] > MAX_SECONDS
            or last["peak_bytes"] > MAX_BYTES
            or last["continued"] < jobs
        )
    return int(given.long and exceeded)


if __name__ == "__main__":
    sys.exit(main())
