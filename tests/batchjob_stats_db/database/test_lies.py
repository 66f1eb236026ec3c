"""Lies from generators: no error, nothing true is lost, and nothing beyond the gate is believed.

What may be believed is stated here once more, apart from the gate's own table. With `--long` there
are ten thousand lies of each kind, and each rule of the gate is taken out in turn: see
`taken_out.py`, which runs the other tests of this module.
"""

import json
import math
import random
import shutil
import uuid

import pytest
import sqlalchemy as sa

from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.json_lines import Jsonl, JsonLinesOptions
from batchjob.schedulers.records import JobRecord, NodeShare, StepRecord
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url
from batchjob_stats_db.database.gate import RULES
from batchjob_stats_db.measure.job_usage import PRESENCE_METRIC
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.timeseries.base import SeriesValue
from tests.batchjob_stats_db.database import taken_out
from tests.batchjob_stats_db.database.test_gate import numbers_of
from tests.batchjob_stats_db.simulated_source import build_poller
from tests.helpers.processes import run

NOW = 1_775_300_000
DAY, YEAR = 86_400, 366 * 86_400
PER_POLL = 50
ODD_NUMBERS = (
    0, -1, 0.5, 7, 59, 3600, 2**31, 2**32, 2**53, 2**63, -(2**63), 2**200, 1e300, -1e300, 1e18,
    5e12, math.nan, math.inf, -math.inf, DAY, NOW, NOW + 900, NOW + YEAR, NOW - 11 * YEAR,
    662_688_000, 4_102_444_800,
)  # fmt: skip
ODD_TEXTS = ("", "x" * 300, "naïve", "nul\0", "half \udc80", "a, b", "1e300", "?" * 5000)
RUN_ID = str(uuid.UUID(int=7, version=4))
TEXTS = ("user", "account", "partition", "name", "array_jobid", "het_jobid", "reason", "node_list")


@pytest.fixture
def lies(long_form):
    """How many lies of each kind are told."""
    return 10_000 if long_form else 300


@pytest.fixture
def url(tmp_path, sqlite_template):
    """Both databases have the same gate, and test_gate.py is run on each."""
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    return parse_url(f"sqlite:///{tmp_path}/jobs.db")


def honest(number, **fields):
    """A job whose record is true."""
    given = {
        "submit_time": NOW - 8000, "state": JobState.COMPLETED, "state_word": "COMPLETED",
        "source": "liar", "user": "alice", "uid": 1001, "name": "honest", "start_time": NOW - 7200,
        "end_time": NOW - 3600, "elapsed_seconds": 3600, "allocated_cpus": 4,
        "allocated_nodes": 1, "cpu_seconds": 7200.0, "nodes": (NodeShare("n001", 4),),
    }  # fmt: skip
    return JobRecord("c1", str(number), **{**given, **fields})


STEP = StepRecord("0", JobState.COMPLETED, "COMPLETED", elapsed_seconds=3600)
MANY_NODES = tuple(NodeShare(f"n{number}") for number in range(100_001))


def number(chance):
    """A number that may be anything."""
    if chance.random() < 0.5:
        return chance.choice(ODD_NUMBERS)
    return chance.choice((1, -1, 1, 1)) * 10 ** chance.uniform(-3, 20)


def lie(chance, jobid):
    """A record with some lies."""
    record = honest(jobid, name="lie")
    if chance.random() < 0.01:
        return record._replace(nodes=MANY_NODES)
    if chance.random() < 0.1:
        zero = {"cpu_seconds": 0.0, "user_cpu_seconds": 0.0, "system_cpu_seconds": 0.0}
        return record._replace(**zero, peak_memory_bytes=1 << 30)
    if chance.random() < 0.05:
        return record._replace(jobid="j" * 300 + str(jobid))
    if chance.random() < 0.05:
        return record._replace(priority="not a number")
    if chance.random() < 0.03:
        return record._replace(start_time=NOW - 11 * YEAR)
    numbers = [name for name in numbers_of(JobRecord) if name != "uid"]
    told = {name: number(chance) for name in chance.sample(numbers, chance.randint(1, 4))}
    if chance.random() < 0.3:
        told["energy_joules"] = 10 ** chance.uniform(5, 14)
    if chance.random() < 0.3:
        told[chance.choice(TEXTS)] = chance.choice(ODD_TEXTS)
    if chance.random() < 0.3:
        name = chance.choice(numbers_of(StepRecord))
        told["steps"] = (STEP._replace(**{name: number(chance)}),)
    if chance.random() < 0.3:
        name = chance.choice(numbers_of(NodeShare))
        told["nodes"] = (NodeShare("n001", 4)._replace(**{name: number(chance)}),)
    return record._replace(**told)


class LyingScheduler:
    """Each reading has honest records among lies."""

    name, cluster, now = "liar", "c1", NOW

    def __init__(self):
        self.records = ()

    def check(self):
        return ()

    def watermark_at(self, since):
        return "0"

    def read(self, watermark, unfinished):
        yield Batch(tuple(self.records), (), str(int(watermark) + 1), NOW)


def believed(engine):
    """The rows of all jobs as lists show them; each is written as JSON, and none is impossible."""
    with engine.connect() as db:
        joined = schema.job.outerjoin(schema.job_usage)
        jobs = [
            dict(row) for row in db.execute(sa.select(*columns()).select_from(joined)).mappings()
        ]
        parts = [
            dict(row)
            for table in (schema.job_step, schema.job_node, schema.job_gpu, schema.daily_usage)
            for row in db.execute(sa.select(table)).mappings()
        ]
        shares = sa.select(sa.func.count(schema.job_node.c.node)).group_by(schema.job_node.c.job_id)
        assert max(db.execute(shares).scalars(), default=0) <= 100_000
    for row in (*jobs, *parts):
        json.dumps(row, allow_nan=False)
        for name, value in row.items():
            assert is_believable(name, value), (name, value)
    for row in jobs:
        check_job(row)
    return jobs


def is_believable(name, value):
    """Whether a single value may be shown."""
    if isinstance(value, str):
        is_key = name in ("jobid", "username", "account", "partition", "array_jobid", "het_jobid")
        return len(value) <= 255 or not is_key
    if value is None or name.startswith("resized_") or "_resized" in name:
        return True
    if name == "priority" or name.endswith("exit_code"):
        return abs(value) <= 2**53
    if name in ("expected_start_time", "eligible_time"):
        return 631_152_000 <= value <= NOW + 11 * YEAR
    if name.endswith("_time") and not name.startswith("usage_"):
        return 631_152_000 <= value <= NOW + 2 * DAY
    if name.endswith("_ratio"):
        return 0 <= value <= 1.05
    if name == "uid":
        return 0 <= value < 2**32
    return 0 <= value <= (1e30 if "byte_seconds" in name else 2**62)


def check_job(row):
    """Values that are impossible together."""
    start, end, elapsed = row["start_time"], row["end_time"], row["elapsed_seconds"]
    ran = end - start if start is not None and end is not None else elapsed
    assert ran is None or ran <= 10 * YEAR
    if row["allocated_nodes"] and ran is not None:
        most = row["allocated_nodes"] * (max(ran, 0) + 60) * 20_000
        assert (row["energy_joules"] or 0) <= most
        assert (row["usage_energy_joules"] or 0) <= 2 * most
    if row["peak_memory_bytes"] and (elapsed or 0) > 60:
        times = [row[f"{kind}cpu_seconds"] for kind in ("", "user_", "system_")]
        assert not [each for each in times if each is not None] or any(times)


def test_lying_scheduler(engine, lies):
    chance, source = random.Random(1), LyingScheduler()
    poller = build_poller(engine, source)
    for first in range(0, lies, PER_POLL):
        told = [lie(chance, each) for each in range(first, first + PER_POLL)]
        source.records = (honest(f"a{first}"), *told[:25], honest(f"b{first}"), *told[25:])
        assert poller.run_cycle()
    jobs = believed(engine)
    names = [row["name"] for row in jobs]
    assert names.count("honest") == 2 * lies // PER_POLL
    assert names.count("lie") > lies / 2  # a lie takes no other value with it


def honest_line(number, **more):
    times = {"submit_time": NOW - 8000, "start_time": NOW - 7200, "end_time": NOW - 3600}
    return json.dumps({"jobid": number, "user": "alice", "state": "COMPLETED", **times, **more})


def lying_line(chance, jobid):
    """A line of a file of records, by somebody who may write anything."""
    odd = [*ODD_NUMBERS, *ODD_TEXTS, None, True, [], {}, [{}], {"node": 7}, [[1]], "2026-01-01"]
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(("{", "[1", "\x00", '{"jobid": 1e999}', "null", "7", '"', "{}" * 9))
    document = json.loads(honest_line(jobid, name="lie", uid=1002))
    if kind < 0.2:
        return json.dumps({**document, "jobid": RUN_ID})
    for name in chance.sample([*JobRecord._fields, "unknown"], chance.randint(1, 6)):
        document[name] = chance.choice(odd)
    return json.dumps(document)


def test_lying_records(engine, tmp_path, lies):
    chance, path = random.Random(2), tmp_path / "jobs.jsonl"
    path.write_text(honest_line(RUN_ID, name="mine", uid=1001) + "\n")
    source = Jsonl("c1", JsonLinesOptions(path=str(path)))
    source.now = NOW
    poller = build_poller(engine, source)
    assert poller.run_cycle()
    for first in range(0, lies, PER_POLL):
        lines = [lying_line(chance, str(each)) for each in range(first, first + PER_POLL)]
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\n".join((*lines, honest_line(f"a{first}", name="honest"), "")))
        assert poller.run_cycle()
    jobs = believed(engine)
    names = [row["name"] for row in jobs]
    assert names.count("honest") == lies // PER_POLL
    assert [row["name"] for row in jobs if row["jobid"] == RUN_ID] == ["mine"]


class LyingNodes:
    """A store in which each job has one true number, 100 s of CPU, and many that may be lies."""

    source = "prometheus"

    def __init__(self, chance):
        self._chance = chance

    def measure(self, wanted, spans):
        return {
            statistic: [each for span in spans for each in self._series(statistic, metrics, span)]
            for statistic, metrics in wanted.items()
        }

    def _series(self, statistic, metrics, span):
        chance = self._chance
        for metric in metrics:
            labels = {"jobid": span.jobid, "instance": "n001:10910", "user": "alice"}
            if metric == PRESENCE_METRIC:
                value = 100.0 if statistic is Statistic.TOTAL else 30.0
                yield SeriesValue(metric, {**labels, "mode": "user"}, value)
                foreign = {**labels, "instance": "n002:10910"}
                yield SeriesValue(metric, {**foreign, "mode": "user"}, 12_345.0)
                continue
            for component in ("host", "gpu"):
                odd = {
                    "component": component, "kind": chance.choice(("active", "idle", "?")),
                    "uuid": chance.choice(ODD_TEXTS[:4]), "provider": chance.choice(ODD_TEXTS[:4]),
                }  # fmt: skip
                value = 30.0 if statistic is Statistic.COUNT else float(number(chance))
                yield SeriesValue(metric, {**labels, **odd}, value)

    def latest(self, cluster, metrics, now):
        labels = {"instance": "n001:10910", "uuid": self._chance.choice(ODD_TEXTS[:4])}
        return [SeriesValue(metrics[0], labels, float(number(self._chance))) for _ in range(9)]

    def last_sample_times(self, metrics, spans):
        return []

    def measure_cluster(self, *_asked):
        return None


def test_lying_nodes(engine, lies):
    chance, source = random.Random(3), LyingScheduler()
    poller = build_poller(engine, source, history=LyingNodes(chance), url="http://tsdb")
    node_2 = honest("other", name="other", user="bob", nodes=(NodeShare("n002", 4),))
    source.records = [node_2, *(honest(each, cpu_seconds=None) for each in range(lies))]
    assert poller.run_cycle()
    jobs = [row for row in believed(engine) if row["name"] == "honest"]
    assert len(jobs) == lies
    assert {row["usage_user_cpu_seconds"] for row in jobs} == {100.0}
    assert {row["usage_nodes"] for row in jobs} == {1}


@pytest.mark.parametrize("rule", taken_out.ERRORS)
def test_rules_of_errors_are_in_their_places(rule):
    assert taken_out.changed_module(taken_out.ERRORS[rule][0], rule)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule, long_form):
    if not long_form:
        pytest.skip("only with --long")
    done = run(taken_out.argv(rule), timeout=900)
    assert done.returncode == 1, f"nothing fails without the rule {rule}:\n{done.stdout}"
