"""Citizens that turn hostile, four and more of each kind, and what each of them does.

`act(site, dice)` does one hostile thing; with other dice, another one of its kind. What must hold
at once is asserted there. Whether the figures of others have changed is looked at afterwards, by
`Site.work`.
"""

import asyncio
import base64
import gzip
import itertools
import json
import logging
import os
import pwd
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import sqlalchemy as sa

from batchjob.local_runs.output import StreamLog
from batchjob.local_runs.record import VERSION, Run, SupervisorProcess
from batchjob.local_runs.retention import RunRetention, sweep
from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.accounting import SourceError
from batchjob.schedulers.states import JobState
from batchjob_cli.run import stop_request
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.web import site as exporter_site
from batchjob_exporter.web.message import HttpRequest
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.measure import job_usage
from batchjob_stats_db.timeseries import prometheus_client
from batchjob_stats_db.timeseries.base import QueryFailed, SeriesValue, TimeSeriesError
from batchjob_stats_server.auth import oidc
from batchjob_stats_server.auth.rights import ProcessToken
from batchjob_stats_server.pages import job as job_page
from tests.helpers.waiting import scaled
from tests.security.one_bad_citizen import (
    CITIZEN,
    NODES,
    ROUND_SECONDS,
    USERS,
    Job,
    Site,
    series_labels,
)

NUMBERS = [1e300, -1e300, 2.0**63, -1.0, 1e19, float("nan"), float("inf"), -float("inf")]
VICTIM_UID, CITIZEN_UID = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("games").pw_uid
DEEP = "[" * 200_000

Act = Callable[[Site, random.Random], None]


class Citizen(NamedTuple):
    """One that turns hostile: what it is, and the kind of fault that it looks for."""

    kind: str
    act: Act

    @property
    def name(self) -> str:
        return self.act.__name__


CITIZENS: list[Citizen] = []


def citizen(kind: str) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        CITIZENS.append(Citizen(kind, act))
        return act

    return register


def own_job(site: Site, **changes: object) -> Job:
    """A job of the citizen, on the last nodes."""
    number = len(site.jobs)
    job = Job(str(number), CITIZEN, site.now + 10, tuple(NODES[-4:]))._replace(**changes)
    site.jobs[job.jobid] = job
    return job


def own_pbs_job(site: Site) -> Job:
    return own_job(site, jobid=f"{len(site.jobs)}.srv")


# A number from outside reaches a column or a loop.

NUMBER = "number"


@citizen(NUMBER)
def node_reports_impossible_numbers(site, dice):
    job, value = own_job(site), dice.choice(NUMBERS)
    site.write_json_line(site.json_record(job))

    def lie(jobid):
        if jobid == job.jobid:
            labels = series_labels(job, job.nodes[0], mode="user", component="host", provider="x")
            for statistic, names in job_usage.METRICS.items():
                for metric in names:
                    yield statistic, SeriesValue(metric, labels, value)

    site.nodes.lies = [lie]


@citizen(NUMBER)
def node_reports_impossible_emissions(site, dice):
    """Sums of an account stay finite."""
    job, value = own_job(site), dice.choice(NUMBERS)
    site.write_json_line(site.json_record(job))

    def lie(jobid):
        if jobid == job.jobid:
            labels = series_labels(job, job.nodes[0], provider="x")
            yield Statistic.TOTAL, SeriesValue(EMISSIONS_GRAMS.metric.name, labels, value)
            for node, kind in itertools.product(job.nodes, ("active", "idle")):
                labels = series_labels(job, node, component="host", kind=kind)
                yield Statistic.TOTAL, SeriesValue(ENERGY_JOULES.metric.name, labels, 1000.0)

    site.nodes.lies = [lie]
    site.now += ROUND_SECONDS
    site.poll()
    answer = site.get("vera", "/api/v1/usage/emissions?since=1775260800")
    assert answer.status_code == 200, answer.text
    grams = [row["grams"] for row in answer.json()]
    assert all(each is not None and 0 <= each < 1e13 for each in grams)


@citizen(NUMBER)
def record_of_a_run_of_centuries(site, dice):
    job = own_job(site)
    site.write_json_line(
        site.json_record(
            job,
            submit_time=dice.choice([1, 10_000, 700_000_000]),
            start_time=dice.choice([1, 2]),
            end_time=dice.choice([2**33, 2**35, 2**39]),
            elapsed_seconds=None,
        )
    )


@citizen(NUMBER)
def record_that_began_in_1990(site, dice):
    start = dice.randrange(631_152_001, 900_000_000)
    site.write_json_line(
        site.json_record(own_job(site), submit_time=start, start_time=start, elapsed_seconds=None)
    )


@citizen(NUMBER)
def record_with_numbers_that_no_column_holds(site, dice):
    number = dice.choice([2**62, 2**63 - 1, 2**63, 2**64, 2**200, 1e300, -1])
    names = (
        "allocated_cpus",
        "priority",
        "energy_joules",
        "requested_memory_bytes",
        "exit_code",
        "time_limit_seconds",
        "uid",
        "run",
        "elapsed_seconds",
    )
    fields = dict.fromkeys(dice.sample(names, dice.randrange(1, 5)), number) | {
        "allocated_cpus": number
    }
    site.write_json_line(site.json_record(own_job(site), **fields))
    site.write_json_line(
        site.json_record(own_job(site), nodes=[{"node": "n199", "cpus": number, "gpus": number}])
    )


@citizen(NUMBER)
def record_of_the_far_future(site, dice):
    times = {
        name: site.now + dice.randrange(10**5, 10**12)
        for name in ("submit_time", "start_time", "end_time", "expected_start_time")
    }
    site.write_json_line(site.json_record(own_job(site), **times))


# One failure takes its neighbours.

NEIGHBOURS = "neighbours"


@citizen(NEIGHBOURS)
def job_that_cannot_be_measured(site, dice):
    job = own_job(site)
    site.write_json_line(site.json_record(job))
    error = dice.choice(
        [
            ZeroDivisionError("odd"),
            MemoryError(),
            QueryFailed("too many samples"),
            OverflowError("too large"),
            RecursionError(),
        ]
    )
    site.nodes.error_for = {job.jobid: error}


@citizen(NEIGHBOURS)
def record_with_text_that_no_database_stores(site, dice):
    text = dice.choice(["\ud800", "a\0b", "\udfff" * 1000, "x" * 300_000, "\ud83d"])
    names = dice.sample(["name", "partition", "account", "submit_line", "reservation"], 3)
    # Escaped, as a program writes it that checks nothing.
    site.write_json_line(json.dumps(site.json_record(own_job(site), **dict.fromkeys(names, text))))


@citizen(NEIGHBOURS)
def line_of_garbage_among_records(site, dice):
    garbage = bytes(dice.randrange(256) for _ in range(2000)).replace(b"\n", b"")
    with site.json_lines.open("ab") as file:
        file.write(garbage + b"\n")
    site.write_json_line(dice.choice(['{"jobid": "1"', "null", "[1]", '{"jobid": []}', "1e999"]))


@citizen(NEIGHBOURS)
def source_that_fails_in_a_way_nobody_foresaw(site, dice):
    error = dice.choice(
        [ZeroDivisionError("odd"), KeyError("x"), RecursionError(), OSError(5, "io")]
    )

    def fail(watermark, unfinished):
        raise error

    source = site.poller.cluster.sources[-1]
    source.read = fail
    site.undo.append(lambda: vars(source).pop("read"))


@citizen(NEIGHBOURS)
def source_whose_error_no_database_stores(site, dice):
    """Such as the name of a file that is not UTF-8."""
    error = SourceError(dice.choice(["b\udcff.jsonl: Is a directory", "a\0b", "\ud800" * 1000]))

    def fail(watermark, unfinished):
        raise error

    source = site.poller.cluster.sources[-1]
    source.read = fail
    site.undo.append(lambda: vars(source).pop("read"))
    site.poll()
    with site.engine.connect() as db:
        assert db.scalar(sa.select(schema.poll_state.c.error_time).where(
            schema.poll_state.c.source == source.name)) == site.now  # fmt: skip


@citizen(NEIGHBOURS)
def store_that_fails_in_a_way_nobody_foresaw(site, dice):
    """Pages show what is recorded."""
    error = dice.choice([KeyError("node"), ZeroDivisionError("odd"), TypeError(), QueryFailed("x")])
    running = own_job(site)
    record = site.json_record(running, state="RUNNING", end_time=None, elapsed_seconds=None)
    site.write_json_line(record)
    site.poll()
    site.nodes.error_for = {running.jobid: error}

    def fail():
        raise error

    site.now += 3600
    site.nodes.wait = fail
    try:
        for path in ("/clusters/c1", "/admin", f"/jobs/{running.jobid}", "/jobs?columns=cpu"):
            answer = site.get("root", path, Accept="text/html")
            assert answer.status_code in (200, 422), (path, answer.status_code)
    finally:
        site.nodes.wait = bool


@citizen(NEIGHBOURS)
def unreadable_file_among_the_logs(site, dice):
    path = site.directory / "pbs" / f"2025{dice.randrange(1, 13):02}{dice.randrange(1, 29):02}"
    if path.exists():
        return
    with path.open("wb") as file:
        file.write(bytes(dice.randrange(256) for _ in range(300)) + b"\n" + b";" * 3000 + b"\n")


# Believed by id alone.

BY_ID = "believed by id"


def lie_about_all_jobs(site, metric, value, **changes):
    def lie(jobid):
        job = site.jobs.get(jobid)
        if job and job.user != CITIZEN:
            node = changes.get("instance", next(n for n in NODES if n not in job.nodes))
            labels = series_labels(job, node.removesuffix(":10910"), **changes)
            for statistic in (Statistic.TOTAL, Statistic.PEAK, Statistic.COUNT):
                yield statistic, SeriesValue(metric, labels, value)

    site.nodes.lies = [lie]


@citizen(BY_ID)
def node_speaks_of_jobs_of_other_nodes(site, dice):
    metric = dice.choice(["batchjob_job_cpu_seconds_total", "batchjob_job_memory_peak_bytes"])
    lie_about_all_jobs(site, metric, dice.uniform(1, 1e9), mode="user")


@citizen(BY_ID)
def series_of_another_login_with_the_ids_of_all_jobs(site, dice):
    def lie(jobid):
        job = site.jobs.get(jobid)
        if job and job.user != CITIZEN:
            labels = series_labels(job, dice.choice(job.nodes), mode="user", user=CITIZEN)
            yield Statistic.TOTAL, SeriesValue("batchjob_job_cpu_seconds_total", labels, 5e8)

    site.nodes.lies = [lie]


@citizen(BY_ID)
def node_speaks_for_the_scheduler(site, dice):
    labels = {"job": "nodes", "instance": "n199:10910", "node": dice.choice(NODES[:4])}
    site.nodes.latest_lies = [
        SeriesValue("batchjob_cluster_node_info", {**labels, "state": "down"}, 1.0),
        SeriesValue("batchjob_cluster_node_cpus", labels, dice.choice([0.0, 1e6, 1e300])),
        SeriesValue("batchjob_cluster_node_cpus", {"job": "nodes"}, 1.0),
    ]
    site.now += 3600  # so that the last reading is not shown


@citizen(BY_ID)
def node_claims_the_gpu_of_another(site, dice):
    """The other's job shows its own GPU's power, not what the node says of it."""
    job = next(reversed([each for each in site.jobs.values() if each.user == "alice"]))
    info = "batchjob_job_gpu_info"
    true = series_labels(job, job.nodes[0], uuid="GPU-1", gpu="0", confirmed="true")
    false = series_labels(job, "n199", uuid="GPU-1", gpu=str(dice.randrange(8)), confirmed="true")
    claim = series_labels(job, job.nodes[1], uuid="GPU-2", gpu="1", confirmed="false")
    watts = "batchjob_gpu_power_watts"
    site.nodes.latest_lies = [
        SeriesValue(info, true, 1.0),
        SeriesValue(info, false, 1.0),
        SeriesValue(info, claim, 1.0),
        SeriesValue(watts, {"instance": true["instance"], "uuid": "GPU-1"}, 100.0),
        SeriesValue(watts, {"instance": "n199:10910", "uuid": "GPU-1"}, dice.uniform(200, 900)),
        SeriesValue(watts, {"instance": claim["instance"], "uuid": "GPU-2"}, 300.0),
    ]
    answer = site.get("alice", f"/api/v1/jobs/{job.jobid}/metrics?metric=gpu_power")
    assert answer.status_code == 200, answer.text
    assert {row["mean"] for row in answer.json()} == {100.0}


@citizen(BY_ID)
def record_of_another_user_with_the_id_of_a_job(site, dice):
    """Of JSON lines an administrator decides; a run belongs to who wrote its file."""
    run, owner = str(uuid.uuid4()), CITIZEN_UID
    write_run(site, run, VICTIM_UID, owner)
    site.poll()
    with site.engine.connect() as db:
        assert not site.find(db, run), "a run in the name of another was recorded"


@citizen(BY_ID)
def deletion_of_the_run_of_another(site, dice):
    run = str(uuid.uuid4())
    write_run(site, run, VICTIM_UID, VICTIM_UID)
    site.poll()
    tombstone = site.data / "runs" / f"{run}.deleted"
    tombstone.touch()
    os.chown(tombstone, CITIZEN_UID, -1)
    site.poll()
    with site.engine.connect() as db:
        assert site.find(db, run), "a run of another was deleted"


def write_run(site: Site, jobid: str, uid: int, owner: int, **changes: object) -> None:
    """The record of a run that has ended, in a file of `owner`; `changes`: values of its JSON."""
    path = site.data / "runs" / f"{jobid}.json"
    supervisor = SupervisorProcess(1, 1, "another boot")
    run = Run(
        jobid=jobid,
        node=os.uname().nodename,
        user="x",
        uid=uid,
        submit_time=site.now - 60,
        start_time=site.now - 60,
        end_time=site.now - 50,
        state=JobState.FAILED,
        supervisor=supervisor,
        name="train",
    )
    document = {"version": VERSION, **run._asdict(), "supervisor": supervisor._asdict()}
    document |= changes
    path.write_text(json.dumps(document))
    path.chmod(0o644)
    os.chown(path, owner, -1)


# User text in a grammar.

GRAMMAR = "grammar"


@citizen(GRAMMAR)
def account_that_closes_its_quote_in_a_pbs_log(site, dice):
    job = own_pbs_job(site)
    forged = dice.choice(
        [
            f"start={job.start - 10**6}",
            "end=9999999999",
            "ctime=5",
            "exec_host=n000/0*8 exec_vnode=(n000:ncpus=8)",
            "Exit_status=0",
        ]
    )
    attributes = site.pbs_attributes(job).replace('"physics"', f'"physics" {forged} x="')
    site.write_pbs_line(job, attributes)
    site.poll()
    with site.engine.connect() as db:
        for row in site.find(db, job.jobid):
            assert row["start_time"] in (None, job.start)
            assert row["end_time"] in (None, job.end)
            assert "n000" not in row["node_list"]


@citizen(GRAMMAR)
def record_within_a_record_of_a_pbs_log(site, dice):
    """A name of a job that holds the end of a line and the beginning of the next."""
    victim = next(reversed([each for each in site.jobs.values() if each.user == "carol"]))
    job = own_pbs_job(site)
    inner = site.pbs_attributes(victim._replace(start=victim.start - dice.randrange(10, 10**6)))
    site.write_pbs_line(job, site.pbs_attributes(job, f"x;E;{victim.jobid};{inner}"))


@citizen(GRAMMAR)
def name_twice_in_a_json_record(site, dice):
    job = own_job(site)
    text = json.dumps(site.json_record(job))
    name, value = dice.choice(
        [
            ("user", '"alice"'),
            ("start_time", "631152100"),
            ("end_time", "631152100"),
            ("jobid", '"0"'),
        ]
    )
    site.write_json_line(f'{text[:-1]}, "{name}": {value}}}')
    site.poll()
    with site.engine.connect() as db:
        assert not site.find(db, job.jobid)


@citizen(GRAMMAR)
def name_twice_in_a_request(site, dice):
    bodies = [("/sign-in", "token=bj_a&token=bj_b"), ("/sign-in", "next=/a&next=/b&token=bj_a")]
    path, body = dice.choice(bodies)
    assert site.client.post(path, content=body).status_code == 422
    headers = {"Content-Type": "application/json", **site.bearer(CITIZEN)}
    body = '{"label": "x", "role": "user", "role": "admin"}'
    assert site.client.post("/api/v1/tokens", content=body, headers=headers).status_code == 422
    name = dice.choice(["limit", "since", "user"])
    assert site.get(CITIZEN, f"/api/v1/jobs?{name}=1&{name}=2").status_code == 422


@citizen(GRAMMAR)
def markup_and_formulas_in_a_name(site, dice):
    text = dice.choice(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "=cmd|' /C calc'!A0",
            "</title><svg/onload=alert(1)>",
        ]
    )
    job = own_job(site)
    site.write_json_line(site.json_record(job, name=text, reason=text, submit_line=text))
    site.now += 4000
    site.poll()
    page = site.get("vera", f"/jobs/{job.jobid}", Accept="text/html").text
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<svg/onload" not in page
    lines = site.get("vera", "/api/v1/jobs?format=csv&fields=name&limit=5").text
    assert not any(line.lstrip('"').startswith("=") for line in lines.splitlines())


@citizen(GRAMMAR)
def id_with_the_grammar_of_queries(site, dice):
    jobid = dice.choice(['1"} or up{a="', "1'; DROP TABLE job; --", ".*", "%", "1\\", "a/../b"])
    for path in ("/api/v1/jobs/{}", "/api/v1/jobs/{}/metrics", "/jobs/{}"):
        answer = site.get(CITIZEN, path.format(jobid.replace("/", "%2f").replace("%", "%25")))
        assert answer.status_code in (404, 422) or answer.text == "[]", answer.text


# Files that users write.

FILES = "files"


@citizen(FILES)
def request_to_stop_the_run_of_another(site, dice):
    run = str(uuid.uuid4())
    path = site.data / "runs" / f"{run}.stop"
    path.write_text(dice.choice(['{"grace": 0}', '{"grace": 86400}', DEEP[:1000]]))
    path.chmod(0o644)
    os.chown(path, CITIZEN_UID, -1)
    assert stop_request.pop(site.data / "runs", run) is None


@citizen(FILES)
def logs_that_take_all_the_room(site, dice):
    """The victim's log stays, although the citizen's are newer and use up a whole quota."""
    logs = site.data / "logs"
    kept = write_log(site, VICTIM_UID, b"a line\n" * 10)
    for _ in range(2):
        directory = logs / str(uuid.uuid4())
        directory.mkdir()
        big = directory / "stderr.000000.gz"
        big.write_bytes(random.Random(1).randbytes(dice.randrange(300_000, 900_000)))
        for path in (directory, big):
            os.chown(path, CITIZEN_UID, -1)
    sweep(site.data, RunRetention(logs_bytes=200_000))
    assert kept.exists(), "the log of another was deleted"


@citizen(FILES)
def sparse_log_dated_ahead(site, dice):
    kept = write_log(site, VICTIM_UID, b"a line\n")
    directory = write_log(site, CITIZEN_UID, b"")
    path = directory / "stdout.000009.gz"
    with path.open("wb") as file:
        file.truncate(dice.randrange(1 << 31, 1 << 40))
    os.utime(path, (9e9, 9e9))
    os.chown(path, CITIZEN_UID, -1)
    sweep(site.data, RunRetention(logs_bytes=100_000))
    assert kept.exists()


def write_log(site: Site, owner: int, text: bytes) -> Path:
    directory = site.data / "logs" / str(uuid.uuid4())
    directory.mkdir()
    log = StreamLog(directory, "stderr", 1 << 20)
    log.add(text, float(site.now))
    log.close(float(site.now))
    for path in (directory, *directory.iterdir()):
        os.chown(path, owner, -1)
    return directory


@citizen(FILES)
def link_to_what_only_root_reads(site, dice):
    secret = site.directory / "secret-of-root"
    secret.write_text(json.dumps({"version": VERSION, "jobid": "x", "uid": 0, "submit_time": 1}))
    secret.chmod(0o600)
    run = str(uuid.uuid4())
    for name in (f"{run}.json", f"{run}.stop", f"{run}.deleted"):
        (site.data / "runs" / name).symlink_to(secret)
        os.chown(site.data / "runs" / name, CITIZEN_UID, -1, follow_symlinks=False)
    site.poll()
    assert stop_request.pop(site.data / "runs", run) is None
    assert secret.exists()


@citizen(FILES)
def pipes_and_huge_files_among_the_records(site, dice):
    runs = site.data / "runs"
    for _ in range(3):
        os.mkfifo(runs / f"{uuid.uuid4()}.json")
    huge = runs / f"{uuid.uuid4()}.json"
    with huge.open("wb") as file:
        file.truncate(1 << dice.randrange(32, 42))


@citizen(FILES)
def log_that_unpacks_for_minutes(site, dice):
    """The page of the failed run of the citizen is shown, and costs little."""
    run = str(uuid.uuid4())
    directory = site.data / "logs" / run
    directory.mkdir()
    line = dice.choice([b"\n", b"x", b"2026-04-04T12:53:20Z stderr F \n", b"\0"])
    path = directory / "stderr.000000.gz"
    path.write_bytes(gzip.compress(line * (30_000_000 // len(line)), 1))
    os.chown(path, CITIZEN_UID, -1)
    started = time.thread_time()
    job_page.last_errors(site.data, run, CITIZEN_UID)
    assert time.thread_time() - started < 5


# Waits without an end.

WAITS = "waits"


def is_done_while_hanging(ask: Callable[[Callable[..., object]], object], seconds: float) -> bool:
    """Whether `ask` is done in time, given a function that hangs until then, a minute at most."""
    end = threading.Event()
    thread = threading.Thread(target=ask, args=(lambda *_: end.wait(60),), daemon=True)
    thread.start()
    thread.join(scaled(seconds))
    done = not thread.is_alive()
    end.set()
    thread.join(scaled(60))
    return done


@citizen(WAITS)
def store_of_time_series_that_hangs(site, dice):
    """Pages show what is recorded."""
    job = next(reversed(site.jobs.values()))
    site.now += 3600  # the last reading is too old to be shown
    path = dice.choice(["/clusters/c1", "/admin", f"/jobs/{job.jobid}"])

    def ask(hang):
        site.nodes.wait = hang
        site.get("root", path, Accept="text/html")

    done = is_done_while_hanging(ask, 8)
    site.nodes.wait = bool
    assert done, f"{path} waits for the store"


@citizen(WAITS)
def user_whose_requests_take_long(site, dice):
    """The threads of a kind do not all belong to one user."""
    queue = dice.choice([site.services.threads.files, site.services.threads.heavy])

    async def ask() -> str:
        end = threading.Event()
        slow = [asyncio.ensure_future(queue.run(CITIZEN, lambda: end.wait(60))) for _ in range(30)]
        try:
            await asyncio.sleep(0.01)
            return await asyncio.wait_for(queue.run("alice", lambda: "answer"), scaled(2))
        finally:
            end.set()
            await asyncio.gather(*slow)

    assert site.client.portal.call(ask) == "answer"


@citizen(WAITS)
def file_system_that_hangs(site, dice):
    """The page of a failed run is shown without its last lines."""
    job = own_job(site)
    site.write_json_line(site.json_record(job, state=dice.choice(["FAILED", "TIMEOUT"])))
    site.now += ROUND_SECONDS
    site.poll()

    def ask(hang):
        with mock.patch.object(job_page, "last_errors", hang):
            site.get(CITIZEN, f"/jobs/{job.jobid}", Accept="text/html")

    assert is_done_while_hanging(ask, 8)


@citizen(WAITS)
def scrape_that_may_wait_for_an_hour(site, dice):
    """A collector hangs, and a header asks for a long time: the exporter has a maximum."""
    header = dice.choice(["3600", "30", "1e300", "inf", "nan", "-1", "x"])
    headers = {"x-prometheus-scrape-timeout-seconds": header}
    request = HttpRequest("GET", "/metrics", (), headers, keep_alive=True)
    entered = threading.Event()

    def ask(hang):
        def collect():
            entered.set()
            hang()
            return []

        exporter = Exporter({"slow": SimpleNamespace(collect=collect)})
        threading.Thread(target=exporter.collect, daemon=True).start()
        assert entered.wait(scaled(5))
        with mock.patch("batchjob_exporter.web.site._MAX_TIMEOUT_SECONDS", 0.2):
            exporter.collect(seconds=exporter_site._seconds_left(request))

    assert is_done_while_hanging(ask, 5)


@citizen(WAITS)
def database_that_accepts_and_says_nothing(site, dice):
    """Whoever connects gives up."""
    make = dice.choice([reader_engine, writer_engine])
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = parse_url(f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x")

        def ask(hang):
            with mock.patch("batchjob_stats_db.database.engine._CONNECT_SECONDS", 2):
                engine = make(url)
            with suppress(sa.exc.OperationalError):
                engine.connect()

        # Without a limit, the connection ends when the listener does.
        thread = threading.Thread(target=ask, args=(None,), daemon=True)
        thread.start()
        thread.join(scaled(6))
        done = not thread.is_alive()
    assert done, "the connection is waited for"


# A cookie that is a token.

COOKIE = "cookie"
_COOKIE_NAME = "batchjob-80"


def session_cookie(site: Site, role: TokenRole = TokenRole.USER) -> str:
    """What the browser of alice holds after she has signed in with a token."""
    text = site.token("alice", role)
    answer = site.client.post("/sign-in", data={"token": text}, follow_redirects=False)
    site.client.cookies.clear()
    return answer.cookies[_COOKIE_NAME]


@citizen(COOKIE)
def port_that_sends_the_cookie_as_a_token(site, dice):
    text = session_cookie(site, dice.choice(list(TokenRole)))
    for value in (f"Bearer {text}", f"Bearer {text.partition('_')[2]}"):
        answer = site.client.get("/api/v1/me", headers={"Authorization": value})
        assert answer.status_code == 401


@citizen(COOKIE)
def program_of_another_user_with_the_cookie(site, dice):
    """In `batchjob up`: whose socket is at the other end is asked of the kernel."""
    text = session_cookie(site)
    process = ProcessToken("bj_of_the_process", "alice", TokenRole.ADMIN)
    uid = dice.choice([CITIZEN_UID, VICTIM_UID])
    services = site.services._replace(process_token=process)
    with (
        mock.patch("batchjob_stats_server.auth.browser_session.local_uid", return_value=uid),
        mock.patch.object(site.client.app.state, "services", services),
    ):
        answer = site.client.get("/api/v1/me", headers={"Cookie": f"{_COOKIE_NAME}={text}"})
    assert answer.status_code == 401


@citizen(COOKIE)
def page_of_another_site_that_sends_a_form(site, dice):
    text = session_cookie(site)
    origin = dice.choice(
        [
            "http://evil.example",
            "https://testserver:1",
            "null",
            "http://testserver:8080",
            "http://testserver.evil.example",
        ]
    )
    headers = dice.choice(
        [{"Origin": origin}, {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"}]
    )
    for path in ("/tokens", "/tokens/1/revoke", "/sign-out"):
        cookie = {"Cookie": f"{_COOKIE_NAME}={text}"}
        answer = site.client.post(path, data={"label": "x", "days": "1"}, headers=headers | cookie)
        assert answer.status_code in (401, 403), path


@citizen(COOKIE)
def port_that_sets_a_second_cookie(site, dice):
    own = session_cookie(site)
    pair = [f"{_COOKIE_NAME}={own}", f"{_COOKIE_NAME}=bw_{dice.getrandbits(64)}"]
    dice.shuffle(pair)
    headers = {"Cookie": "; ".join(pair)}
    assert site.client.get("/api/v1/me", headers=headers).status_code == 400


@citizen(COOKIE)
def session_that_changes_through_the_api(site, dice):
    text = session_cookie(site, TokenRole.ADMIN)
    headers = {"Cookie": f"{_COOKIE_NAME}={text}", "Origin": "http://testserver"}
    for method, path in (("POST", "/api/v1/tokens"), ("DELETE", "/api/v1/tokens/1")):
        answer = site.client.request(method, path, json={"label": "x"}, headers=headers)
        assert answer.status_code == 401


@citizen(COOKIE)
def token_that_outlives_the_process_that_made_it(site, dice):
    """A token made through `batchjob up` ends with it, whoever holds the token."""
    first, second = (
        ProcessToken(f"bj_{dice.getrandbits(200):050x}", "alice", TokenRole.ADMIN) for _ in range(2)
    )
    state = site.client.app.state
    with mock.patch.object(state, "services", site.services._replace(process_token=first)):
        made = site.client.post(
            "/api/v1/tokens",
            json={"label": "x", "lifetime_seconds": 86400},
            headers={"Authorization": f"Bearer {first.text}"},
        )
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        assert site.client.get("/api/v1/me", headers=headers).status_code == 200
    for process in (second, None):
        services = site.services._replace(process_token=process)
        with mock.patch.object(state, "services", services):
            assert site.client.get("/api/v1/me", headers=headers).status_code == 401


# A parser's list of exceptions.

EXCEPTIONS = "exceptions"


def nested(dice: random.Random) -> str:
    opening = dice.choice(["[", '{"a":', '[{"a":'])
    return opening * dice.randrange(2_000, 50_000)


@citizen(EXCEPTIONS)
def record_nested_too_deeply(site, dice):
    site.write_json_line(nested(dice))
    site.write_json_line(
        json.dumps(site.json_record(own_job(site)))[:-1] + f', "x": {nested(dice)}'
    )


@citizen(EXCEPTIONS)
def run_nested_too_deeply(site, dice):
    path = site.data / "runs" / f"{uuid.uuid4()}.json"
    path.write_text(nested(dice))
    path.chmod(0o644)
    os.chown(path, CITIZEN_UID, -1)


def assert_runs_of_others_are_read(site: Site) -> None:
    run = str(uuid.uuid4())
    write_run(site, run, VICTIM_UID, VICTIM_UID)
    site.poll()
    with site.engine.connect() as db:
        assert site.find(db, run), "the run of another was not read"


@citizen(EXCEPTIONS)
def run_nested_as_deep_as_the_parser_follows(site, dice):
    """Deeper by a few calls than what is done with the value afterwards."""
    for depth in range(940 + dice.randrange(10), 1000):
        run = str(uuid.uuid4())
        write_run(site, run, CITIZEN_UID, CITIZEN_UID, name=[])
        path = site.data / "runs" / f"{run}.json"
        path.write_text(path.read_text().replace("[]", "[" * depth + "]" * depth))
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def run_whose_process_has_an_impossible_number(site, dice):
    """In the record of an unfinished run, which is read in each cycle."""
    run, supervisor = str(uuid.uuid4()), {"pid": 1, "start_ticks": 1, "boot_id": "x"}
    unfinished = {"state": JobState.RUNNING, "end_time": None}
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, **unfinished, supervisor=supervisor)
    site.poll()
    supervisor["pid"] = dice.choice([float("inf"), float("nan"), 10**400, -1, "1", [1], True])
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, **unfinished, supervisor=supervisor)
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def run_with_an_endless_time_limit(site, dice):
    limit = dice.choice([float("inf"), float("nan"), -float("inf"), 1e300])
    run = str(uuid.uuid4())
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, time_limit_seconds=limit)
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def cookie_of_a_log_in_nested_too_deeply(site, dice):
    texts = [nested(dice), '["\\ud800", "", "", ""]', '{"a": 1, "a": 2}', "[1, 2]", "\0"]
    cookie = base64.urlsafe_b64encode(dice.choice(texts).encode()).decode()
    with suppress(oidc.OidcError):
        oidc.parse_pending_login(cookie)


@citizen(EXCEPTIONS)
def answer_of_the_store_nested_too_deeply(site, dice):
    body = dice.choice([nested(dice), '{"status": "success", "data": ' + nested(dice), "\ud800"])
    with suppress(TimeSeriesError):
        prometheus_client.results_of("http://tsdb", 200, body.encode("utf-8", "surrogatepass"))


@citizen(EXCEPTIONS)
def request_nested_too_deeply(site, dice):
    body = nested(dice)[:60_000]
    headers = {"Content-Type": "application/json", **site.bearer(CITIZEN)}
    status = site.client.post("/api/v1/tokens", content=body, headers=headers).status_code
    assert 400 <= status < 500
    cursor = base64.urlsafe_b64encode(body[:150].encode()).decode()
    assert 400 <= site.get(CITIZEN, f"/api/v1/jobs?cursor={cursor}").status_code < 500


# Audit by result.

AUDIT = "audit"


@contextmanager
def audited(user: str, words: str):
    """Expect a line of the audit log that names the asker, and what was asked for."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("batchjob.audit")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert any(user in line and words in line for line in lines), lines


@citizen(AUDIT)
def viewer_who_asks_for_sums_of_one_person(site, dice):
    path, words = dice.choice(
        [
            ("usage?account=physics", "asked for '/api/v1/usage'"),
            ("usage?user=alice", "asked for '/api/v1/usage'"),
            ("stats/waste?by=account", "asked for"),
            ("stats/failures?by=account", "asked for"),
            ("usage?account=nobody", "asked for '/api/v1/usage'"),
        ]
    )
    with audited("vera", words):
        assert site.get("vera", f"/api/v1/{path}").status_code == 200


@citizen(AUDIT)
def viewer_who_reads_jobs_of_others(site, dice):
    job = dice.choice([each for each in site.jobs.values() if each.user in ("alice", "carol")])
    path = dice.choice(["/api/v1/jobs/{}", "/jobs/{}", "/api/v1/jobs/{}/report"])
    with audited("vera", job.user):
        answer = site.get("vera", path.format(job.jobid), Accept="text/html")
        assert answer.status_code == 200


@citizen(AUDIT)
def user_who_tries_what_is_forbidden(site, dice):
    body = {"label": "x", "user": "alice", "role": dice.choice(["user", "viewer", "admin"])}
    with audited(CITIZEN, "was refused"):
        answer = site.client.post("/api/v1/tokens", json=body, headers=site.bearer(CITIZEN))
        assert answer.status_code == 403


@citizen(AUDIT)
def admin_who_makes_a_token_for_another(site, dice):
    body = {"label": "x", "user": dice.choice(USERS), "lifetime_seconds": 3600}
    with audited("root", f"made a token for {body['user']}"):
        answer = site.client.post("/api/v1/tokens", json=body, headers=site.identity("root"))
        assert answer.status_code in (200, 201), answer.text


@citizen(AUDIT)
def admin_who_uses_the_token_of_another(site, dice):
    body = {"label": "x", "user": "bob", "lifetime_seconds": 3600}
    made = site.client.post("/api/v1/tokens", json=body, headers=site.identity("root")).json()
    with audited("root as bob", dice.choice(["saw jobs of bob", "used token"])):
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert site.client.get("/api/v1/jobs?limit=1", headers=headers).status_code == 200
