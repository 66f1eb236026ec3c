"""A poller and a server in simulated time.

Only the clock, the scheduler and the samples are simulated; the database, the time series store,
the poller and the HTTP server are real.
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
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.services import Services, build
from batchjob_stats_server.turns import TimeSeriesPool
from tests.batchjob_stats_server.serving import serving
from tests.grafana import stack
from tests.helpers.clock import Clock, set_sqlite_clock
from tests.life.exporters import SimulatedExporter, node_exporters
from tests.life.ground_truth import (
    CPUS,
    GPUS,
    INTERVAL,
    LINGER_SECONDS,
    MEMORY_BYTES,
    NODES,
    ScriptedRun,
)

REFRESH_SECONDS = 1200  # how often the poller measures running jobs
OPERATOR = "root"

Fault = Callable[[Sequence[str]], list[str]]
"""Makes wrong samples of true ones; a sample is a line, with its time at the end."""


@contextlib.contextmanager
def sqlite_clock(clock: Clock) -> Iterator[None]:
    """Make all SQLite connections use the clock."""

    def register_strftime(raw: Any, _record: Any) -> None:
        set_sqlite_clock(raw, clock)

    sa.event.listen(sa.Engine, "connect", register_strftime)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "connect", register_strftime)


class SimulatedScheduler:
    """Lists the runs as they are at the clock's time."""

    name = "simulated"
    cluster = stack.CLUSTER

    def __init__(self, runs: Sequence[ScriptedRun], clock: Clock) -> None:
        self._runs = runs
        self._clock = clock

    def check(self) -> tuple[str, ...]:
        return ()

    def watermark_at(self, since: int) -> str:
        return "0"

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        now = self._clock.now
        jobs = tuple(job_record(run, now) for run in self._runs if run.submit <= now)
        yield Batch(jobs, (), str(now), now)


def job_record(run: ScriptedRun, now: int) -> JobRecord:
    """The record of a run at a time."""
    started, ended = now >= run.start, now >= run.end + run.end_delay_seconds
    is_suspended = run.suspended[0] <= now < run.suspended[1]
    unfinished_state = JobState.SUSPENDED if is_suspended else JobState.RUNNING
    state = JobState.COMPLETED if ended else unfinished_state if started else JobState.PENDING
    total = run.usage_at(run.end)
    accounting = {"cpu_seconds": total.cpu_seconds, "peak_memory_bytes": int(total.memory_bytes)}
    nodes = tuple(NodeShare(node, CPUS // 2, MEMORY_BYTES // 2, GPUS // 2) for node in NODES)
    return JobRecord(
        stack.CLUSTER, run.jobid, run.submit, state, state.value, SimulatedScheduler.name,
        user=run.user, uid=1000, account="physics", partition="gpu", name="train",
        start_time=run.start if started else None, end_time=run.end if ended else None,
        elapsed_seconds=run.active_seconds(now) if started else None,
        suspended_seconds=int(run.suspended_seconds(now)),
        allocated_cpus=CPUS if started else None, allocated_nodes=len(NODES) if started else None,
        allocated_memory_bytes=MEMORY_BYTES if started else None,
        allocated_gpus=GPUS if started else None,
        nodes=nodes if started else (), **(accounting if ended and run.has_accounting else {}),
    )  # fmt: skip


class SwitchableStore:
    """A time series store that can be down."""

    def __init__(self, store: TimeSeriesStore) -> None:
        self.store = store
        self.is_down = False

    @property
    def source(self) -> str:
        return self.store.source

    def measure(self, *arguments: Any) -> Any:
        return self._available_store().measure(*arguments)

    def measure_cluster(self, *arguments: Any) -> Any:
        return self._available_store().measure_cluster(*arguments)

    def last_sample_times(self, *arguments: Any) -> Any:
        return self._available_store().last_sample_times(*arguments)

    def job_series(self, *arguments: Any) -> Any:
        return self._available_store().job_series(*arguments)

    def latest(self, *arguments: Any) -> Any:
        return self._available_store().latest(*arguments)

    def scrape_ratios(self, *arguments: Any) -> Any:
        return self._available_store().scrape_ratios(*arguments)

    def node_series(self, *arguments: Any) -> Any:
        return self._available_store().node_series(*arguments)

    def _available_store(self) -> TimeSeriesStore:
        if self.is_down:
            raise TimeSeriesError("connection refused")
        return self.store


class SimulatedSite(NamedTuple):
    """All parts of the site."""

    clock: Clock
    measurements: SwitchableStore
    services: Services
    poller: Poller
    store: Store
    url: str
    tokens: Mapping[str, str]  # by user
    exporters: Sequence[SimulatedExporter]
    fault: Fault = list  # in scraped samples
    cluster: str = stack.CLUSTER
    headers: Mapping[str, str] = MappingProxyType(
        {"X-Grafana-User": OPERATOR, "X-Batchjob-Secret": stack.SECRET}
    )
    interval: int = INTERVAL

    @property
    def reader(self) -> Engine:
        """Engine for reading the database."""
        return self.services.reader

    def now(self) -> float:
        """The clock's time."""
        return self.clock.now

    def scraped_samples(self) -> list[str]:
        """The samples of the exporters now, as a time series store would have them."""
        now = self.clock.now
        lines = [line for each in self.exporters for line in each.sample_lines(now)]
        return self.fault([f"{line} {now}" for line in lines])

    def poll(self) -> None:
        """Run one cycle of the poller."""
        self.poller.run_cycle()

    def recompute(self) -> None:
        """Mark every ended job for measurement."""
        with self.store.transaction() as db:
            mark_for_measurement(db, stack.CLUSTER, 0, now=self.clock.now)


@contextlib.contextmanager
def running_site(
    folder: Path, runs: Sequence[ScriptedRun], store: TimeSeriesStore, tsdb_url: str, now: int
) -> Iterator[SimulatedSite]:
    """Start the server with an empty database; `tsdb_url`: of a Prometheus, if there is one."""
    clock, measurements = Clock(now), SwitchableStore(store)
    tsdb = TsdbOptions(
        url=tsdb_url or "http://127.0.0.1:1", scrape_interval=INTERVAL, linger=LINGER_SECONDS,
        live=0.0, refresh=REFRESH_SECONDS, retention=20 * 365 * 86400.0,
    )  # fmt: skip
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    with sqlite_clock(clock), contextlib.ExitStack() as exit_stack:
        engine = writer_engine(url, create=True)
        exit_stack.callback(engine.dispose)
        migrate(engine)
        job_store = Store(engine, stack.CLUSTER, tsdb.policy(), clock)
        cluster = ClusterSettings(stack.CLUSTER, (SimulatedScheduler(runs, clock),), (), tsdb)
        options = PollOptions(interval=0.0, rollup_interval=0.0, reread=0.0)
        poller = Poller(
            cluster,
            job_store,
            measurements,
            options,
            RetentionOptions(),
            PollerMetrics(),
            clock,
        )
        services = _build_services(folder, url, tsdb, bool(tsdb_url), measurements, clock)
        exit_stack.callback(services.stop)
        with services.writer.begin() as db:
            users = {run.user for run in runs}
            tokens = {user: create(db, user, TokenRole.USER, "test", 0) for user in users}
        port = exit_stack.enter_context(serving(services))
        exporters = node_exporters(folder, runs)
        for each in exporters:
            exit_stack.callback(each.close)
        server_url = f"http://127.0.0.1:{port}"
        yield SimulatedSite(
            clock, measurements, services, poller, job_store, server_url, tokens, exporters
        )


def _build_services(
    folder: Path, url: sa.URL, tsdb: TsdbOptions, with_prometheus: bool,
    measurements: SwitchableStore, clock: Clock,
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
        limit=LimitOptions(user_rate=0),  # the clock stands still while all views are read
    )  # fmt: skip
    services = build(settings)
    services = services if with_prometheus else services._replace(tsdb=None)
    stores = TimeSeriesPool([measurements] * 4)
    return services._replace(stores=stores, clock=clock)
