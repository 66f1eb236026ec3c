"""One bad value, record or step never keeps the poller from the others."""

import threading

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob.runtime.settings import LogOptions
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.isolation import Patience
from batchjob_stats_db.poller import poller as poller_module
from batchjob_stats_db.poller.batch_writer import BatchWriter
from batchjob_stats_db.poller.options import (
    BackupOptions,
    ClusterSettings,
    DatabaseOptions,
    PollerSettings,
    PollerWebOptions,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.reread import Rereader, read_missing_scripts
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.poller.service import PollerService
from batchjob_stats_db.timeseries.base import SeriesValue
from tests.batchjob_stats_db.simulated_source import RUN_SECONDS, SimulatedSource, build_poller
from tests.helpers.waiting import scaled, until

BAD_JOB = "17"
BAD_NUMBERS = [1e300, 2.0**63, -1e300, float("nan"), float("inf"), -float("inf")]
INTEGERS = ["memory_peak_bytes", "threads", "io_read_bytes_total", "gpu_memory_bytes"]


class LyingStore:
    """Each job has CPU time; one node also claims an impossible number of one job."""

    source = "prometheus"

    def __init__(self, metric, value, bad_node="n017:9010"):
        self.metric, self.value, self.bad_node = f"batchjob_job_{metric}", value, bad_node

    def measure(self, wanted, spans):
        found = {statistic: [] for statistic in wanted}
        for span in spans:
            labels = {"jobid": span.jobid, "instance": self._node(span), "user": self._user(span)}
            cpu = SeriesValue("batchjob_job_cpu_seconds_total", {**labels, "mode": "user"}, 40.0)
            found[Statistic.TOTAL].append(cpu)
            found[Statistic.COUNT].append(cpu)
            if span.jobid == BAD_JOB:
                bad = SeriesValue(self.metric, {**labels, "instance": self.bad_node}, self.value)
                for statistic in (Statistic.TOTAL, Statistic.PEAK):
                    found[statistic].append(bad)
        return found

    def last_sample_times(self, metrics, spans):
        return []

    @staticmethod
    def _node(span):
        return f"n{int(span.jobid) % 50:03}:9010"

    @staticmethod
    def _user(span):
        return f"user{int(span.jobid) % 7}"


def poller_with(engine, history):
    return build_poller(engine, SimulatedSource(50), history=history, url="http://tsdb")


def metric(poller, name, **labels):
    return poller.metrics.registry.get_sample_value(f"batchjob_stats_db_{name}", labels)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_impossible_value_of_one_node_keeps_no_job_from_being_measured(engine, rows, name, value):
    poller = poller_with(engine, LyingStore(name, value))
    assert [poller.run_cycle() for _ in range(2)] == [True, True]
    jobids = {row["id"]: row["jobid"] for row in rows(schema.job)}
    used = {jobids[row["job_id"]]: row["user_cpu_seconds"] for row in rows(schema.job_usage)}
    assert {used[jobid] for jobid in used.keys() - {BAD_JOB}} == {40.0}
    assert len(used) == 50
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 50 * RUN_SECONDS


def test_impossible_value_is_not_stored_in_either_database(engine, rows):
    poller_with(engine, LyingStore("memory_peak_bytes", 1e300)).run_cycle()
    jobids = {row["id"]: row["jobid"] for row in rows(schema.job)}
    (bad,) = [row for row in rows(schema.job_usage) if jobids[row["job_id"]] == BAD_JOB]
    assert bad["memory_peak_bytes"] is None


def test_node_that_was_not_allocated_changes_no_figure(engine, rows):
    history = LyingStore("memory_peak_bytes", 2e9, bad_node="n030:9010")
    poller_with(engine, history).run_cycle()
    jobids = {row["id"]: row["jobid"] for row in rows(schema.job)}
    (usage,) = [row for row in rows(schema.job_usage) if jobids[row["job_id"]] == BAD_JOB]
    assert (usage["memory_peak_bytes"], usage["nodes"]) == (None, 1)
    assert "other nodes" in usage["caveats"]


@pytest.mark.parametrize("step", ["_measure", "_roll_up", "delete_expired", "_poll_source"])
def test_step_that_fails_is_counted_and_the_others_are_done(engine, rows, step, monkeypatch):
    def fail(*_):
        raise OverflowError("Python int too large to convert to SQLite INTEGER")

    history = LyingStore("threads", 1.0)
    failing = poller_with(engine, history)
    with monkeypatch.context() as context:
        context.setattr(Poller if step.startswith("_") else poller_module, step, fail)
        assert not failing.run_cycle()
    names = {"_measure": "measurements", "_roll_up": "sums", "delete_expired": "retention",
             "_poll_source": "simulated"}  # fmt: skip
    failed = {"cluster": "c1", "step": names[step], "reason": "other"}
    assert metric(failing, "step_errors_total", **failed) == 1
    assert len(rows(schema.job)) == (0 if step == "_poll_source" else 50)
    measured = len(rows(schema.job_usage))
    assert measured == (0 if step in ("_poll_source", "_measure") else 50)
    again = poller_with(engine, history)
    assert again.run_cycle()
    assert len(rows(schema.job_usage)) == 50


class FailingForOneJob(LyingStore):
    def measure(self, wanted, spans):
        if any(span.jobid == BAD_JOB for span in spans):
            raise OverflowError("a sample of the job")
        return super().measure(wanted, spans)


def test_job_whose_sample_files_could_not_be_read_is_measured_again_later(engine, rows):
    """Without an address of a time series database, too: the policy is that of the files."""
    source, options = SimulatedSource(20), TsdbOptions()

    def clock():
        return float(source.now)

    poller = Poller(
        ClusterSettings("c1", (source,), (), options), Store(engine, "c1", UsagePolicy(60), clock),
        FailingForOneJob("threads", 1.0), PollOptions(interval=0.0), RetentionOptions(),
        PollerMetrics(), clock,
    )  # fmt: skip
    poller.run_cycle()
    due = {row["jobid"]: row["usage_due_time"] for row in rows(schema.job)}
    assert due[BAD_JOB] > source.now


def test_record_that_ends_the_writing_of_its_batch_is_set_aside(engine, rows, monkeypatch):
    def refuse(self, batch, *more):
        if any(job.jobid == BAD_JOB for job in batch.jobs):
            raise OverflowError("too long")
        return write(self, batch, *more)

    poller = build_poller(engine, SimulatedSource(50))
    write = type(poller.store).write
    monkeypatch.setattr(type(poller.store), "write", refuse)
    assert poller.run_cycle()
    assert len(rows(schema.job)) == 49
    (aside,) = rows(schema.quarantine)
    assert "too long" in aside["reason"]
    assert f"jobid='{BAD_JOB}'" in aside["raw"]
    assert poller.store.watermark("simulated") == "50"


def test_polling_that_ends_by_an_error_begins_again(engine, url, monkeypatch):
    cluster = ClusterSettings("c1", (SimulatedSource(50),), (), TsdbOptions())
    settings = PollerSettings(
        DatabaseOptions(), PollerWebOptions(), PollOptions(interval=0.0), RetentionOptions(),
        BackupOptions(), LogOptions(), (cluster,),
    )  # fmt: skip
    service = PollerService(settings, engine)
    ends, problems = [RuntimeError("odd")], []
    cycle = Poller.run_cycle

    def run_cycle(self, stop):
        if ends:
            raise ends.pop()
        problems.append(service.health_problem())
        done = cycle(self, stop)
        problems.append(service.health_problem())
        return done

    monkeypatch.setattr(Poller, "run_cycle", run_cycle)
    service.start()
    until(lambda: len(problems) >= 2)
    service.stop()
    assert "polling ended" in problems[0]
    assert "odd" in problems[0]
    assert problems[1] == ""


def test_source_that_cannot_be_read_again_keeps_no_other_from_it(engine):
    poller = build_poller(engine, SimulatedSource(5))
    poller.run_cycle()
    reread = []

    class Source:
        def __init__(self, name, error=None):
            self.name, self.error = name, error

        read = check = watermark_at = None

        def reread(self, since, find_differing):
            if self.error:
                raise self.error
            reread.append(self.name)
            return []

    sources = [Source("broken", ZeroDivisionError("odd")), Source("good")]
    rereader = Rereader(
        sources, poller.store, BatchWriter(poller.store, poller.metrics),
        PollOptions(), lambda: 0.0, Patience(scaled(60)),
    )  # fmt: skip
    for source in sources:
        rereader.request(source.name)
    with pytest.raises(ZeroDivisionError):
        rereader.reread_due_sources(threading.Event())
    assert reread == ["good"]


class SourceOfScripts(SimulatedSource):
    """Keeps batch scripts; that of one job, if any, raises."""

    script_bytes = 1000

    def __init__(self, name, bad_job=""):
        super().__init__(5)
        self.name, self.bad_job = name, bad_job

    def script(self, job):
        if job.jobid == self.bad_job or self.bad_job == "all":
            raise ZeroDivisionError("odd")
        return f"script of {job.jobid}"


@pytest.mark.parametrize("bad_job", ["4", "all"])
def test_script_that_cannot_be_read_keeps_no_other_from_being_stored(engine, rows, bad_job):
    """Neither one of the same source, nor those of another source."""
    good = SourceOfScripts("simulated")
    poller = build_poller(engine, good)
    poller.run_cycle()
    now = good.now + 120
    broken = SourceOfScripts("simulated", bad_job)
    writer = BatchWriter(poller.store, poller.metrics)

    def read(*sources):
        return read_missing_scripts(sources, poller.store, writer, now, threading.Event())

    with pytest.raises(ZeroDivisionError):
        read(broken)
    assert len(rows(schema.job_script)) == (0 if bad_job == "all" else 4)
    with pytest.raises(ZeroDivisionError):
        read(broken, good)
    assert len(rows(schema.job_script)) == 5


class HangingSource(SimulatedSource):
    """Its file system hangs until `answers` is set."""

    name = "hanging"

    def __init__(self):
        super().__init__(5)
        self.answers = threading.Event()

    def read(self, watermark, unfinished):
        self.calls += 1
        self.answers.wait()
        yield from ()


def test_source_that_hangs_keeps_the_poller_from_nothing_else(engine, rows, monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.poller.poller._ANSWER_SECONDS", 0.2)
    hanging, good = HangingSource(), SimulatedSource(5)
    cluster = ClusterSettings("c1", (hanging, good), (), TsdbOptions())

    def clock():
        return float(good.now)

    poller = Poller(
        cluster, Store(engine, "c1", cluster.tsdb.policy(), clock), None,
        PollOptions(interval=0.0, rollup_interval=0.0), RetentionOptions(), PollerMetrics(),
        clock,
    )  # fmt: skip
    try:
        assert [poller.run_cycle() for _ in range(3)] == [False] * 3
        assert hanging.calls == 1  # it is not asked again while it hangs
        assert len(rows(schema.job)) == 5
        errors = {row["source"]: row["error"] for row in rows(schema.poll_state)}
        assert errors["hanging"] == "an earlier reading still hangs"
    finally:
        hanging.answers.set()
    until(poller.run_cycle, "a cycle of both sources")


def test_directory_that_hangs_takes_no_thread_of_health(engine, monkeypatch, tmp_path):
    """Readiness says so, and metrics show the last backup that was seen."""
    looked, answers = threading.Event(), threading.Event()

    def hang(*_):
        looked.set()
        answers.wait()
        return 0.0

    monkeypatch.setattr("batchjob_stats_db.poller.self_metrics.newest_time", hang)
    monkeypatch.setattr("batchjob_stats_db.poller.service.Path.is_dir", hang)
    cluster = ClusterSettings("c1", (SimulatedSource(1),), (), TsdbOptions(), str(tmp_path))
    settings = PollerSettings(
        DatabaseOptions(), PollerWebOptions(listen_address=("127.0.0.1", 0)),
        PollOptions(interval=0.0), RetentionOptions(), BackupOptions(directory=str(tmp_path)),
        LogOptions(), (cluster,),
    )  # fmt: skip
    service = PollerService(settings, engine)
    service.pollers[0].has_polled = True
    service.start()
    try:
        assert looked.wait(scaled(10))
        assert service.readiness_problem() == "samples: the file system does not answer"
        assert service.health_problem() == ""
        answers.set()
        until(lambda: "does not answer" not in service.readiness_problem())
    finally:
        answers.set()
        service.stop()
