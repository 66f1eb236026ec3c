"""What all simulated months have: clocks, outages, a poller, a database, and the comparison."""

import bisect
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    SeriesValue,
    Statistic,
    TimeSeriesError,
)

BEGIN = 1_791_806_400  # 12 October 2026; clocks go back on the 25th
MINUTE, HOUR, DAY = 60, 3600, 86_400

Key = tuple[str, int, int]
"""Job id, time of submission, run."""


class Differences(NamedTuple):
    """What the database has at the end, beside the model."""

    jobs: int
    lost: int
    doubled: int
    stale: int
    unmeasured: int = 0


class Clock:
    """True time, and what the machine of the poller takes it for."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.ahead = 0

    def wall(self) -> float:
        return float(self.now + self.ahead)

    def monotonic(self) -> float:
        return float(self.now - BEGIN)


class Outage(NamedTuple):
    """A time in which something is down."""

    what: str  # link (slurmctld to slurmdbd), scheduler, queue, network, tsdb, poller, clock
    begin: int
    end: int
    ahead: int = 0  # seconds by which a wrong clock is ahead


def outages(chance: random.Random, days: int) -> list[Outage]:
    """Two of each kind, each up to so many hours, and three times of a wrong clock."""
    found = []
    for what, longest in (
        ("link", 12), ("scheduler", 6), ("queue", 3), ("network", 4), ("tsdb", 8), ("poller", 26),
    ):  # fmt: skip
        for _ in range(2):
            begin = BEGIN + chance.randrange(HOUR, days * DAY)
            found.append(Outage(what, begin, begin + chance.randrange(600, longest * HOUR)))
    for ahead in (HOUR, DAY, -HOUR):
        begin = BEGIN + chance.randrange(HOUR, days * DAY)
        length = chance.choice((600, 2 * HOUR))
        found.append(Outage("clock", begin, begin + length, ahead))
    return found


class SimulatedTsdb:
    """Has measured each job to its end: it used one CPU all the time."""

    source = "prometheus"

    def __init__(self) -> None:
        self.down = False

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], spans: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        if self.down:
            raise TimeSeriesError("http://tsdb: Connection refused")
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        for span in spans:
            until = span.until if span.end is None else min(span.until, span.end)
            labels = {"jobid": span.jobid, "instance": "10.0.0.1:10910", "mode": "user"}
            values = {
                Statistic.TOTAL: ("batchjob_job_cpu_seconds_total", until - span.start),
                Statistic.COUNT: ("batchjob_job_cpu_seconds_total", (until - span.start) / 30 + 1),
                Statistic.LATEST: ("batchjob_job_cpu_seconds_total", until),
                Statistic.PEAK: ("batchjob_job_end_time_seconds", span.end),
            }
            for statistic, metrics in wanted.items():
                metric, value = values.get(statistic, ("", None))
                if metric in metrics and value is not None:
                    found[statistic].append(SeriesValue(metric, labels, float(value)))
        return found

    def measure_cluster(self, *_: object) -> None:
        """Each job is measured by itself."""
        if self.down:
            raise TimeSeriesError("http://tsdb: Connection refused")


class SimulatedScheduler(Protocol):
    """What has jobs, and can be down."""

    def advance(self, now: int, wall: float, down: set[str]) -> None:
        """Time has come to `now` (and files get the time `wall`)."""

    def after_poll(self, now: int) -> None:
        """The poller has polled."""

    def source(self, clock: Clock) -> Any:
        """A source as a new process makes it."""


def simulate(
    folder: Path,
    scheduler: SimulatedScheduler,
    down: Sequence[Outage],
    days: int,
    step: int,
    interval: float = MINUTE,
) -> sa.Engine:
    """Poll each `step` seconds for some days and three quiet ones; the database."""
    engine, clock, tsdb = database(folder), Clock(), SimulatedTsdb()
    made: Poller | None = None
    while clock.now < BEGIN + (days + 3) * DAY:
        clock.now += step
        now = {each.what for each in down if each.begin <= clock.now < each.end}
        clock.ahead = sum(
            each.ahead
            for each in down
            if each.what == "clock" and each.begin <= clock.now < each.end
        )
        tsdb.down = bool(now & {"tsdb", "network"})
        scheduler.advance(clock.now, clock.wall(), now)
        if "poller" in now:
            made = None
            continue
        made = made or _poller(engine, scheduler.source(clock), tsdb, clock, interval)
        made.run_cycle()
        scheduler.after_poll(clock.now)
    return engine


def _poller(
    engine: sa.Engine, source: Any, tsdb: SimulatedTsdb, clock: Clock, interval: float
) -> Poller:
    """A poller as it begins: it remembers nothing."""
    settings = TsdbOptions(url="http://tsdb", retention=60 * DAY)
    cluster = ClusterSettings("c1", (source,), (), settings)
    store = Store(engine, "c1", settings.policy(), clock.wall)
    options = PollOptions(interval=interval, rollup_interval=100 * DAY)
    return Poller(
        cluster, store, tsdb, options, RetentionOptions(), PollerMetrics(),
        clock.monotonic,
    )  # type: ignore[arg-type]  # fmt: skip


def database(folder: Path) -> sa.Engine:
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    return engine


class Found(NamedTuple):
    """A job as it is in the database."""

    state: str
    start: int | None
    end: int | None
    account: str
    steps: int
    cpu_seconds: float | None


def found_jobs(engine: sa.Engine) -> dict[Key, Found]:
    job, step, usage = schema.job.c, schema.job_step.c, schema.job_usage.c
    counted = sa.select(step.job_id, sa.func.count()).group_by(step.job_id)
    query = sa.select(
        job.id, job.jobid, job.submit_time, job.run, job.state, job.start_time, job.end_time,
        job.account, usage.user_cpu_seconds,
    ).outerjoin(schema.job_usage, usage.job_id == job.id)  # fmt: skip
    with engine.connect() as db:
        steps = {row[0]: row[1] for row in db.execute(counted)}
        found = {
            (row.jobid, row.submit_time, row.run): Found(
                row.state, row.start_time, row.end_time, row.account, steps.get(row.id, 0),
                row.user_cpu_seconds,
            )
            for row in db.execute(query)
        }  # fmt: skip
    engine.dispose()
    return found


Check = Callable[[Found], bool]


def compared(engine: sa.Engine, expected: dict[Key, Check]) -> Differences:
    """Count what is not as the model has it, and show some of it."""
    found = found_jobs(engine)
    lost = [key for key in expected if key not in found]
    doubled = [key for key in found if key not in expected]
    both = [(key, check) for key, check in expected.items() if key in found]
    stale = [key for key, check in both if not check(found[key])]
    unmeasured = [key for key, _ in both if not _measured(found[key])]
    for what, keys in (
        ("lost", lost), ("not expected", doubled), ("stale", stale), ("unmeasured", unmeasured),
    ):  # fmt: skip
        for key in keys[:5]:
            print(f"  {what}: {key}: {found.get(key)}")
    return Differences(len(expected), len(lost), len(doubled), len(stale), len(unmeasured))


def _measured(job: Found) -> bool:
    """Whether its usage is that of its whole time, but for a second that is the next run's."""
    if job.start is None or job.end is None or job.end <= job.start:
        return True
    return job.cpu_seconds is not None and 0 <= job.end - job.start - job.cpu_seconds <= 1


class Answers:
    """When the scheduler was asked with success."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def within(self, begin: int, end: int) -> bool:
        """Whether there was one in [begin, end)."""
        at = bisect.bisect_left(self.times, begin)
        return at < len(self.times) and self.times[at] < end


def is_(state: str, start: int | None, end: int | None) -> Check:
    return lambda job: (job.state, job.start, job.end) == (state, start, end)
