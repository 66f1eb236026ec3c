"""Many passes over running jobs, some of them lost, give what one look at the whole time gives."""

import random
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.live import LiveMeasurement, followed_jobs
from batchjob_stats_db.measure.pending import measure_isolated
from batchjob_stats_db.timeseries import prometheus_store
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import line, victoria_metrics

BEGIN = 1_775_300_000
SCRAPE = 30
PASS = 200  # seconds between two passes; no multiple of the scrape interval
PASSES = 16
POLICY = UsagePolicy()
GIB = 1 << 30


def series(rng, jobid, node, start, end, user="alice"):
    """Samples of a job on a node: gaps, a restart of the exporter, GPUs on some nodes."""
    phase, lines = rng.randrange(1, SCRAPE), []
    own = {"jobid": jobid, "instance": f"{node}:9010", "user": user}
    cpu, written, joules, busy = 0.0, 0, 0.0, rng.random()
    has_gpu, silent_until, reset_odds = node > "n5", 0, rng.choice((0, 0, 0.02))
    peak = 0
    for at in range(start + phase, end, SCRAPE):
        cpu, written = round(cpu + busy * SCRAPE, 3), written + rng.randrange(10**6)
        joules = round(joules + 3000 * rng.random(), 1)
        if rng.random() < reset_odds:
            written = rng.choice((0, 5))
        if rng.random() < 0.03:
            silent_until = at + rng.randrange(400)
        if at < silent_until:
            continue
        memory = rng.randrange(GIB)
        peak = max(peak, memory)
        lines += [
            line("cpu_seconds_total", cpu, at, mode="user", **own),
            line("cpu_seconds_total", 1.5, at, mode="system", **own),
            line("memory_current_bytes", memory, at, **own),
            line("memory_peak_bytes", peak, at, **own),
            line("process_io_written_bytes_total", written, at, **own),
            line("energy_joules_total", joules, at, component="host", kind="active", **own),
        ]
        if has_gpu:
            gpu = {"gpu": "0", "uuid": f"GPU-{node}", "gpu_instance": ""}
            lines += [
                line("gpu_utilization_ratio", rng.randrange(100) / 100, at, **gpu, **own),
                line("gpu_memory_bytes", rng.randrange(GIB), at, **gpu, **own),
            ]
    return lines


def record(jobid, start, nodes, end=None, submit=None):
    state = JobState.COMPLETED if end else JobState.RUNNING
    return JobRecord(
        "c1", jobid, submit or start, state, state.value, "sacct", user="alice", uid=1001,
        start_time=start, end_time=end, allocated_cpus=4 * len(nodes), allocated_nodes=len(nodes),
        nodes=tuple(NodeShare(node, 4) for node in nodes),
    )  # fmt: skip


class Site:
    """Jobs of all kinds: on several nodes, with a node that dies, requeued, ended, lied about."""

    def __init__(self, seed=5):
        rng = random.Random(seed)
        self.lines, self.records = [], []
        last = BEGIN + PASSES * PASS
        for number in range(14):
            start = BEGIN + rng.randrange(-600, PASSES * PASS // 2)
            nodes = rng.sample([f"n{each}" for each in range(1, 9)], rng.choice((1, 1, 2)))
            jobid, end = str(number), None
            if number == 3:
                end = start + 900
            for node in nodes:
                until = end or (rng.randrange(start + 60, last) if number % 5 == 1 else last)
                self.lines += series(rng, jobid, node, start, until)
            self.records.append(record(jobid, start, nodes, end))
        self.lines += series(rng, "0", "n9", BEGIN, last)  # never allocated to it
        self.lines += series(rng, "2", self.records[2].nodes[0].node, BEGIN, last, "mallory")
        for start, end in ((BEGIN, BEGIN + 700), (BEGIN + 760, None)):  # a requeue within linger
            self.lines += series(rng, "requeued", "n1", start, end or last)
            self.records.append(record("requeued", start, ["n1"], end, submit=start))

    def known(self, now):
        """The records as a scheduler has them at a time."""
        return tuple(
            each if each.end_time is None or each.end_time <= now
            else each._replace(end_time=None, state=JobState.RUNNING, state_word="RUNNING")
            for each in self.records
            if each.start_time <= now
        )  # fmt: skip


SITE = Site()


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(SITE.lines) as opened:
        yield opened


class FailingNow:
    """The store, of which a query fails in the middle of a pass."""

    def __init__(self, history):
        self._history, self.source, self.left = history, history.source, 0

    def __getattr__(self, name):
        return getattr(self._history, name)

    def measure_cluster(self, *asked):
        found = self._history.measure_cluster(*asked)
        return None if found is None else self._until_it_fails(found)

    def _until_it_fails(self, found):
        for number, each in enumerate(found):
            if self.left and number == self.left:
                raise TimeSeriesError("a partial answer")
            yield each


def usage_rows(engine):
    """What is stored of each job."""
    with engine.connect() as db:
        jobs = {row.id: (row.jobid, row.start_time) for row in db.execute(schema.job.select())}
        rows = [dict(row) for row in db.execute(schema.job_usage.select()).mappings()]
        gpus = [dict(row) for row in db.execute(schema.job_gpu.select()).mappings()]
    return (
        {jobs[row.pop("job_id")]: row for row in rows},
        {(jobs[gpu.pop("job_id")], gpu["uuid"]): gpu for gpu in gpus},
    )


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name not in ("measured_time", "job_id"):
            same = pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value
            assert found[name] == same, name


def check(history, engine, schedule):
    store = Store(engine, "c1", POLICY, clock=lambda: BEGIN)
    flaky = FailingNow(history)
    live = LiveMeasurement(store, flaky, POLICY, SCRAPE)
    for number, event in enumerate([*schedule, "pass"], 1):
        now = BEGIN + number * PASS
        store.write(Batch(SITE.known(now), (), "", now), "sacct")
        if event == "lost":
            continue
        if event == "restart":
            live = LiveMeasurement(store, flaky, POLICY, SCRAPE)
        flaky.left = 40 if event == "fails" else 0
        try:
            live.run(now)
        except TimeSeriesError:
            assert event == "fails"
    found, found_gpus = usage_rows(engine)
    with engine.connect() as db:
        jobs = followed_jobs(db, "c1", POLICY, now)
    usages, failed = measure_isolated(history, jobs, SCRAPE)
    assert not failed
    seen = 0
    for job, usage in usages.items():
        if usage.samples:
            key = (job.jobid, job.start)
            expected = {**usage._asdict(), **usage.values}
            assert_same({n: found[key][n] for n in found[key].keys() & expected.keys()},
                        {n: expected[n] for n in found[key].keys() & expected.keys()})  # fmt: skip
            for gpu in usage.devices:
                assert_same(found_gpus[key, gpu.uuid], gpu._asdict())
            seen += 1
    assert seen >= 8


@given(st.lists(st.sampled_from(["pass"] * 4 + ["lost", "restart", "fails"]),
                min_size=5, max_size=PASSES - 1))  # fmt: skip
@settings(max_examples=12, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
def test_passes_give_what_one_look_gives(history, sqlite_template, tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("passes") / "jobs.db"
    shutil.copy(sqlite_template, path)
    engine = writer_engine(parse_url(f"sqlite:///{path}"))
    try:
        check(history, engine, schedule)
    finally:
        engine.dispose()


def test_store_that_answers_slowly_is_skipped_and_the_next_pass_covers_its_time(
    sqlite_template, tmp_path, monkeypatch
):
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    engine = writer_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"))
    store = Store(engine, "c1", POLICY, clock=lambda: BEGIN)
    seconds, pause = [0.0], [0.0]
    clock = SimpleNamespace(monotonic=lambda: seconds[0])
    monkeypatch.setattr(prometheus_store, "time", clock)
    with victoria_metrics(SITE.lines) as url:
        history = Prometheus(Endpoint(url, timeout_seconds=60))
        ask = history.session.request

        def slow_ask(*asked, **more):
            seconds[0] += pause[0]
            return ask(*asked, **more)

        history.session.request = slow_ask
        live = LiveMeasurement(store, history, POLICY, SCRAPE)
        store.write(Batch(SITE.known(BEGIN + PASS), (), "", BEGIN), "sacct")
        live.run(BEGIN + PASS)
        assert live.looked_at
        before = usage_rows(engine)
        pause[0] = 3.0  # for each of some 50 queries
        with pytest.raises(TimeSeriesError, match="no whole answer within 60 s"):
            live.run(BEGIN + 2 * PASS)
        assert usage_rows(engine) == before
        pause[0] = 0.0
        live.run(BEGIN + 3 * PASS)
        assert live.continued
    until = {key: row["until_time"] for key, row in usage_rows(engine)[0].items()}
    assert max(until.values()) > BEGIN + 2 * PASS
    engine.dispose()
