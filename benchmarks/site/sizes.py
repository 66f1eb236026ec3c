"""Bytes on disk: of a sample in a store that has kept a day, and of a job in the database."""

import contextlib
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, StepRecord
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import roll_up
from benchmarks.ingest import BEGIN, record
from benchmarks.site.nodes import Site
from benchmarks.site.processes import get
from benchmarks.site.store import store
from tests.batchjob_stats_db import postgresql_server

NODES, JOBS_EACH, JOB_SECONDS, INTERVAL = 4, 10, 3600.0, 30
JOBS, YEARLY = 50_000, 10_000_000  # about two days of a year with ten million
USAGE = """
INSERT INTO job_usage (job_id, source, measured_time, until_time, samples, dropped_series, nodes,
    coverage, caveats, user_cpu_seconds, system_cpu_seconds, memory_peak_bytes,
    memory_peak_node_bytes, memory_average_bytes, io_read_bytes, io_written_bytes,
    energy_host_active_joules, energy_host_idle_joules)
SELECT id, 'prometheus', end_time, end_time, 120, 0, 1, 0.99, '', elapsed_seconds * 3.123,
    elapsed_seconds * 0.0713, 5368709120 + id, 5368709120 + id, 4368709120.5 + id, 7340032 + id,
    3340032 + id, elapsed_seconds * 41.7, elapsed_seconds * 20.3
FROM job WHERE end_time IS NOT NULL
"""


def pages(text: str, seconds: int) -> Iterator[tuple[int, int, bytes]]:
    """Node, time and page of each scrape, up to now."""
    begin = int(time.time()) - seconds
    site = Site(text, NODES, JOBS_EACH, JOB_SECONDS, 300.0, begin)
    for moment in range(begin, begin + seconds, INTERVAL):
        site.advance(moment)
        for node in range(NODES):
            yield node, moment, site.page(node, moment)


def sample_lines(text: str, seconds: int) -> Iterator[str]:
    """The same as lines with the labels of a target and a time in seconds."""
    for node, moment, page in pages(text, seconds):
        target = f'instance="n{node:05}",cluster="site"'
        for line in page.decode().splitlines():
            if not line.startswith("#"):
                head, _, value = line.rpartition(" ")
                name, brace, labels = head.partition("{")
                labels = f"{target},{labels}" if brace else f"{target}}}"
                yield f"{name}{{{labels} {value} {moment}"


def of_victoria_metrics(text: str, seconds: int) -> tuple[int, float]:
    """Samples, and bytes of each, once its parts are merged."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        config = folder / "scrape.yml"
        config.write_text("scrape_configs: []\n")
        with store("victoria-metrics", config, folder) as series:
            count = 0
            for node, moment, page in pages(text, seconds):
                labels = f"extra_label=instance=n{node:05}&extra_label=cluster=site"
                url = f"{series.url}/api/v1/import/prometheus?{labels}&timestamp={moment * 1000}"
                urllib.request.urlopen(url, page, timeout=60).close()
                count += page.count(b"\n") - page.count(b"# ")
            get(f"{series.url}/internal/force_flush")
            get(f"{series.url}/internal/force_merge")
            sizes = [directory_bytes(series.data)]
            while len(sizes) < 4 or len(set(sizes[-3:])) > 1:
                time.sleep(2)
                sizes.append(directory_bytes(series.data))
            return count, sizes[-1] / count


def of_prometheus(text: str, seconds: int) -> tuple[int, float]:
    """Samples, and bytes of each in blocks of two hours, as they are before they are merged."""
    lines = list(sample_lines(text, seconds))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder)
        lines.sort(key=lambda line: line.partition("} ")[0])  # group the samples of each series
        (home / "samples").write_text("\n".join([*lines, "# EOF\n"]))
        create = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
        subprocess.run(create, check=True, cwd=home, capture_output=True)
        return len(lines), directory_bytes(home / "data") / len(lines)


def directory_bytes(folder: Path) -> int:
    """What its files take."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def with_steps(job: JobRecord) -> JobRecord:
    """The job with the two steps that each batch job of Slurm has."""
    times = (job.start_time, job.end_time, job.elapsed_seconds)
    steps = tuple(
        StepRecord(
            step, job.state, job.state.value, step, *(int(t) if t else None for t in times), 0, 0,
            1, job.node_list, 1, 4, None, 12_000.5, 300.25, 12_300.75, 5 << 30, 5 << 30,
            7 << 20, 3 << 20,
        )
        for step in ("batch", "extern")
    )  # fmt: skip
    return job._replace(steps=steps)


def of_job(url: sa.engine.URL, steps: bool) -> float:
    """Bytes in the database of a job on one node, indexes, usage and sums by day included."""
    engine = writer_engine(url, create=True)
    migrate(engine)
    empty = database_bytes(engine)
    records = Store(engine, "alpha", clock=lambda: BEGIN + 366 * DAY)
    made = (record(number, YEARLY) for number in range(JOBS))
    jobs = [with_steps(job) if steps else job for job in made]
    for first in range(0, JOBS, 5000):
        records.write(Batch(tuple(jobs[first : first + 5000]), (), str(first), 0), "benchmark")
    with engine.begin() as db:
        db.execute(sa.text(USAGE))
    for day in range(BEGIN, BEGIN + 4 * DAY, DAY):
        with engine.begin() as db:
            roll_up(db, "alpha", day, BEGIN + 366 * DAY)
    size = database_bytes(engine) - empty
    engine.dispose()
    return size / JOBS


def database_bytes(engine: sa.Engine) -> int:
    """After what is no longer used has been given back."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        if engine.dialect.name == "sqlite":
            pages = int(db.execute(sa.text("PRAGMA page_count")).scalar_one())
            return pages * int(db.execute(sa.text("PRAGMA page_size")).scalar_one())
        db.execute(sa.text("VACUUM"))
        total = " + ".join(
            f"pg_total_relation_size('{table.name}')" for table in schema.metadata.sorted_tables
        )
        return int(db.execute(sa.text(f"SELECT {total}")).scalar_one())


def show(text: str) -> None:
    """Print all of them."""
    for name, of, hours in (
        ("VictoriaMetrics", of_victoria_metrics, 24), ("Prometheus", of_prometheus, 6),
    ):  # fmt: skip
        count, size = of(text, hours * 3600)
        print(f"{name}: {size:.2f} bytes a sample, of {count:,} of {hours} h", flush=True)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        postgresql_server.running(Path("/var/tmp"), "fsync=off") as server,
    ):
        for steps in (False, True):
            what = "with two steps" if steps else "without steps"
            sqlite = of_job(parse_url(f"sqlite:///{folder}/{steps}.db"), steps)
            postgresql = of_job(server.database(f"jobs_{steps}".lower()), steps)
            print(
                f"a job {what}: {sqlite:.0f} bytes in SQLite, {postgresql:.0f} in PostgreSQL, "
                f"in the mean of {JOBS:,}",
                flush=True,
            )
