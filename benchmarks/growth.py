"""What a poll costs as the table of jobs grows: rows asked and examined, CPU, bytes written.

    PYTHONPATH=. python benchmarks/growth.py [--url postgresql://...] [JOBS ...]

At each size: a poll with 1000 jobs that ended since the last one, beside 20,000 that run; a poll
in which nothing but time changed; and measuring the 1000 with what the TSDB is asked and answers.
`examined`: steps of SQLite's machine, or rows that PostgreSQL's scans returned.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import sqlalchemy as sa

from batchjob.schedulers.slurm.accounting import sacct
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.pending import measure_due
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.tsdb import line, prometheus
from tests.simulated.slurm import SimulatedSlurm, SlurmJob

RUNNING, ENDED = 20_000, 1000
SIZES = (10_000, 100_000, 1_000_000)
FILL = """
INSERT INTO job (id, cluster, jobid, submit_time, run, state, state_word, source, username,
    start_time, end_time, {rest}, update_time)
SELECT -{first} - n, 'c1', '' || (1000000000 + {first} + n), {now} - 90000 - n, 1, 'COMPLETED',
    'COMPLETED', 'sacct', 'user' || (n % 2000), {now} - 89000 - n, {now} - 88000 - n, {empty},
    {now}
FROM {numbers}
"""


class Cost(NamedTuple):
    """What one step cost."""

    cpu_seconds: float
    written_bytes: int
    examined: int


class Table:
    """The database, filled with jobs that ended long ago."""

    def __init__(self, engine: sa.Engine, now: int) -> None:
        self.engine, self._now, self._size = engine, now, 0
        self._instructions = 0
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", self._count)
            engine.dispose()  # already open connections are not counted

    def _count(self, raw: object, _record: object) -> None:
        raw.set_progress_handler(self._counted, 1000)  # type: ignore[attr-defined]

    def _counted(self) -> int:
        self._instructions += 1000
        return 0

    def fill(self, size: int) -> None:
        number, first = size - self._size, 10_000_000 + self._size
        numbers = f"generate_series(1, {number}) AS n"
        if self.engine.dialect.name == "sqlite":
            numbers = (
                f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < "
                f"{number}) SELECT n FROM s)"
            )
        needed = [
            column.name
            for column in schema.job.columns
            if not column.nullable and f" {column.name}" not in FILL.replace("(", " ")
        ]
        with self.engine.begin() as db:
            db.execute(sa.text(FILL.format(
                first=first, now=self._now, numbers=numbers, rest=", ".join(needed),
                empty=", ".join("''" for _ in needed),
            )))  # fmt: skip
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(sa.text("ANALYZE"))
        self._size = size

    def _written(self) -> int:
        if self.engine.dialect.name == "sqlite":
            with open("/proc/self/io", encoding="ascii") as file:
                return int(dict(each.split(": ") for each in file)["wchar"])
        with self.engine.connect() as db:
            return int(db.execute(sa.text("SELECT pg_current_wal_insert_lsn() - '0/0'")).scalar())

    def _examined(self) -> int:
        if self.engine.dialect.name == "sqlite":
            return self._instructions
        time.sleep(1.2)  # until the counters have been updated
        query = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables"
        with self.engine.connect() as db:
            return int(db.execute(sa.text(query)).scalar() or 0)

    @contextmanager
    def measured(self, costs: list[Cost]) -> Iterator[None]:
        written, examined = self._written(), self._examined()
        begun = time.process_time()
        yield
        spent = time.process_time() - begun
        costs.append(Cost(spent, self._written() - written, self._examined() - examined))


class Site:
    """A Slurm, a poller, and the clock of both."""

    def __init__(self, engine: sa.Engine, now: int) -> None:
        self.now, self.slurm = now, SimulatedSlurm(now)
        source = sacct.Sacct("c1", sacct.SacctOptions(), self.clock, self.clock)
        settings = TsdbOptions(url="http://127.0.0.1:1")
        self.store = Store(engine, "c1", settings.policy(), self.clock)
        self.policy = settings.policy()
        self.poller = Poller(
            ClusterSettings("c1", (source,), (), settings), self.store, None,
            PollOptions(rollup_interval=1e9), RetentionOptions(), PollerMetrics(),
            self.clock,
        )  # fmt: skip
        for number in range(RUNNING):
            self.slurm.add(SlurmJob(number + 1, now - 5000, now - 4000, now + 10**6))

    def clock(self) -> float:
        return float(self.now)

    def ends(self, number: int, first: int) -> list[SlurmJob]:
        return [
            self.slurm.add(SlurmJob(first + n, self.now - 500, self.now - 400, self.now + 20))
            for n in range(number)
        ]

    def poll(self) -> None:
        self.now += 60
        self.slurm.now = self.now
        with patch.object(sacct, "run", self.slurm.run):
            assert self.poller.run_cycle()


def measured(site: Site, table: Table, jobs: list[SlurmJob]) -> str:
    """Queries, MB and CPU of measuring the jobs by a Prometheus."""
    lines = [
        line("cpu_seconds_total", n, job.start + 30 * n, mode="user", jobid=str(job.jobid))
        for job in jobs
        for n in range(1, 14)
    ]
    costs: list[Cost] = []
    with prometheus(lines) as url:
        history = Prometheus(Endpoint(url))
        ask, asked, size = history.session.request, 0, 0

        def counting(*given: Any, **more: Any) -> Any:
            nonlocal asked, size
            answer = ask(*given, **more)
            asked, size = asked + 1, size + len(answer.body)
            return answer

        history.session.request = counting  # type: ignore[method-assign]
        with site.store.engine.begin() as db:
            db.execute(sa.update(schema.job).values(usage_due_time=None))
            ids = [str(job.jobid) for job in jobs]
            due = sa.update(schema.job).where(schema.job.c.jobid.in_(ids))
            db.execute(due.values(usage_due_time=site.now))
        with table.measured(costs):
            usages, _ = measure_due(site.store, history, site.policy, 30.0, site.now, limit=2000)
    cost = costs[0]
    return (
        f"{len(usages)} measured: {asked} queries, {size / 1e6:.2f} MB,"
        f" {cost.cpu_seconds:.2f} s CPU, {cost.written_bytes / 1e6:.2f} MB written"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="")
    parser.add_argument("sizes", nargs="*", type=int)
    given = parser.parse_args()
    now = int(time.time())
    with tempfile.TemporaryDirectory() as folder:
        engine = writer_engine(
            parse_url(given.url or f"sqlite:///{Path(folder)}/jobs.db"), create=True
        )
        migrate(engine)
        table, site = Table(engine, now), Site(engine, now)
        print(f"{engine.dialect.name}, {os.cpu_count()} CPUs, {RUNNING} running", file=sys.stderr)
        site.poll()
        first = 100_000_000
        for size in given.sizes or SIZES:
            table.fill(size)
            for _ in range(3):  # process the rest of the fill
                site.poll()
            jobs, site.slurm.answered = site.ends(ENDED, first), 0
            first += ENDED
            costs: list[Cost] = []
            with table.measured(costs):
                site.poll()
            rows = site.slurm.answered
            with table.measured(costs):
                site.poll()
            for what, cost in zip((f"{ENDED} ended", "only time"), costs, strict=True):
                print(
                    f"{size} jobs, {what}: {rows} rows asked, {cost.examined} examined,"
                    f" {cost.cpu_seconds:.2f} s CPU, {cost.written_bytes / 1e6:.3f} MB written"
                )
            print(f"{size} jobs, {measured(site, table, jobs)}", flush=True)
        engine.dispose()


if __name__ == "__main__":
    main()
