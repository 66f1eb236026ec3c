"""A poller and a server over simulated time: a scheduler knows the jobs, and measurements are real.

Only the clock, the scheduler's answers and the samples are made; the database, the store of
measurements, the poller, the server and its HTTP are those of a site.
"""

import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from batchjob.schedulers.accounting import Batch, UnfinishedJob
from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.tokens import TokenRole, create
from batchjob_stats_db.measure.pending import mark_for_measurement
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    DatabaseOptions,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.bounded_wait import BoundedWait
from batchjob_stats_server.live_usage import LiveUsage
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.promql.histories import TimeSeriesPool
from batchjob_stats_server.services import Services, build
from tests.batchjob_stats_server.serving import serving
from tests.grafana import stack
from tests.life.exporters import SimulatedExporter, of_nodes
from tests.life.truth import CPUS, GPUS, INTERVAL, LINGER, MEMORY, NODES, Run

REFRESH = 1200  # how often the poller measures running jobs
OPERATOR = "root"

Fault = Callable[[Sequence[str]], list[str]]
"""What makes wrong samples of true ones; a sample is a line, with its time at the end."""


class Clock:
    """The site's time, also that of SQLite's functions."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> float:
        return float(self.now)


@contextlib.contextmanager
def sqlite_tells(clock: Clock) -> Iterator[None]:
    """Have every connection to SQLite take the time from the clock."""

    def connected(raw: Any, _record: Any) -> None:
        raw.create_function("strftime", 2, lambda _form, _when: str(clock.now))

    sa.event.listen(sa.Engine, "connect", connected)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", connected)


class Scheduler:
    """Tells of the runs as they are at the clock's time."""

    name = "simulated"
    cluster = stack.CLUSTER

    def __init__(self, runs: Sequence[Run], clock: Clock) -> None:
        self._runs = runs
        self._clock = clock

    def check(self) -> tuple[str, ...]:
        return ()

    def watermark_at(self, since: int) -> str:
        return "0"

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        now = self._clock.now
        jobs = tuple(record(run, now) for run in self._runs if run.submit <= now)
        yield Batch(jobs, (), str(now), now)


def record(run: Run, now: int) -> JobRecord:
    """A run as its scheduler knows it at a time."""
    begun, ended = now >= run.start, now >= run.end + run.told_late
    stopped = run.suspended[0] <= now < run.suspended[1]
    live = JobState.SUSPENDED if stopped else JobState.RUNNING
    state = JobState.COMPLETED if ended else live if begun else JobState.PENDING
    truth = run.used(run.end)
    known = {"cpu_seconds": truth.cpu_seconds, "peak_memory_bytes": int(truth.memory_bytes)}
    nodes = tuple(NodeShare(node, CPUS // 2, MEMORY // 2, GPUS // 2) for node in NODES)
    return JobRecord(
        stack.CLUSTER, run.jobid, run.submit, state, state.value, Scheduler.name,
        user=run.user, uid=1000, account="physics", partition="gpu", name="train",
        start_time=run.start if begun else None, end_time=run.end if ended else None,
        elapsed_seconds=run.active(now) if begun else None,
        suspended_seconds=int(run.paused(now)),
        allocated_cpus=CPUS if begun else None, allocated_nodes=len(NODES) if begun else None,
        allocated_memory_bytes=MEMORY if begun else None, allocated_gpus=GPUS if begun else None,
        nodes=nodes if begun else (), **(known if ended and run.accounted else {}),
    )  # fmt: skip


class Measurements:
    """The store of measurements, which may be away for a while."""

    def __init__(self, store: TimeSeriesStore) -> None:
        self.store = store
        self.away = False

    @property
    def source(self) -> str:
        return self.store.source

    def measure(self, *asked: Any) -> Any:
        return self._there().measure(*asked)

    def last_sample_times(self, *asked: Any) -> Any:
        return self._there().last_sample_times(*asked)

    def job_series(self, *asked: Any) -> Any:
        return self._there().job_series(*asked)

    def latest(self, *asked: Any) -> Any:
        return self._there().latest(*asked)

    def scrape_ratios(self, *asked: Any) -> Any:
        return self._there().scrape_ratios(*asked)

    def node_series(self, *asked: Any) -> Any:
        return self._there().node_series(*asked)

    def _there(self) -> TimeSeriesStore:
        if self.away:
            raise TimeSeriesError("connection refused")
        return self.store


class Site(NamedTuple):
    """All of it; what is shown is asked at `url`."""

    clock: Clock
    measurements: Measurements
    services: Services
    poller: Poller
    store: Store
    url: str
    tokens: Mapping[str, str]  # by user
    exporters: Sequence[SimulatedExporter]
    fault: Fault = list  # in what is scraped
    cluster: str = stack.CLUSTER
    headers: Mapping[str, str] = MappingProxyType(
        {"X-Grafana-User": OPERATOR, "X-Batchjob-Secret": stack.SECRET}
    )
    interval: int = INTERVAL

    @property
    def reader(self) -> Engine:
        """Of the database."""
        return self.services.reader

    def now(self) -> float:
        """The clock's time."""
        return self.clock.now

    def scraped(self) -> list[str]:
        """What the exporters show now, as a store of measurements would have it."""
        now = self.clock.now
        lines = [line for each in self.exporters for line in each.lines(now)]
        return self.fault([f"{line} {now}" for line in lines])

    def poll(self) -> None:
        """What the poller does in one turn."""
        self.poller.run_cycle()

    def recompute(self) -> None:
        """Have every ended job measured again."""
        with self.store.transaction() as db:
            mark_for_measurement(db, stack.CLUSTER, 0, now=self.clock.now)


@contextlib.contextmanager
def running(
    folder: Path, runs: Sequence[Run], store: TimeSeriesStore, tsdb_url: str, now: int
) -> Iterator[Site]:
    """Start the server over an empty database; `tsdb_url`: where there is a Prometheus."""
    clock, measurements = Clock(now), Measurements(store)
    tsdb = TsdbOptions(
        url=tsdb_url or "http://127.0.0.1:1", scrape_interval=INTERVAL, linger=LINGER,
        refresh=REFRESH, retention=20 * 365 * 86400.0,
    )  # fmt: skip
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    with sqlite_tells(clock), contextlib.ExitStack() as ending:
        engine = writer_engine(url, create=True)
        ending.callback(engine.dispose)
        migrate(engine)
        made = Store(engine, stack.CLUSTER, tsdb.policy(), clock)
        cluster = ClusterSettings(stack.CLUSTER, (Scheduler(runs, clock),), (), tsdb)
        options = PollOptions(interval=0.0, rollup_interval=0.0, reread=0.0)
        poller = Poller(
            cluster, made, measurements, options, RetentionOptions(), PollerMetrics(), clock, clock
        )
        services = _services(folder, url, tsdb, bool(tsdb_url), measurements, clock)
        ending.callback(services.stop)
        with services.writer.begin() as db:
            users = {run.user for run in runs}
            tokens = {user: create(db, user, TokenRole.USER, "test", 0) for user in users}
        port = ending.enter_context(serving(services))
        exporters = of_nodes(folder, runs)
        for each in exporters:
            ending.callback(each.close)
        shown = f"http://127.0.0.1:{port}"
        yield Site(clock, measurements, services, poller, made, shown, tokens, exporters)


def _services(
    folder: Path, url: sa.URL, tsdb: TsdbOptions, gate: bool, measurements: Measurements,
    clock: Clock,
) -> Services:  # fmt: skip
    secret = folder / "secret"
    secret.write_text(stack.SECRET)
    secret.chmod(0o600)
    auth = AuthOptions(
        trusted_peer=(ipaddress.ip_network("127.0.0.1/32"),), secret_file=str(secret),
        admin=(OPERATOR,),
    )  # fmt: skip
    settings = ServerSettings(
        DatabaseOptions(url.render_as_string()), ServerWebOptions(threads=4), auth, tsdb=tsdb,
        limit=LimitOptions(user_rate=0),  # the clock stands while all places are looked at
    )  # fmt: skip
    made = build(settings)
    made = made if gate else made._replace(tsdb=None)
    histories = TimeSeriesPool([measurements] * 4)
    bounded = BoundedWait(seconds=60.0)
    live = LiveUsage(made.reader, histories, tsdb.policy(), tsdb.scrape_interval, bounded)
    return made._replace(histories=histories, live=live, clock=clock)
