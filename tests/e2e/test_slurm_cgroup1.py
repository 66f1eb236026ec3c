"""A real Slurm on cgroup v1, the exporter beside it, and two real Prometheus servers.

One exporter sees the four nodes, as all four slurmd run on this machine; a job of two nodes is one
set of series, as it is one job in the accounting.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from tests.e2e import exporter, prometheus, slurm, slurm_files
from tests.e2e.prometheus import Server
from tests.e2e.workload import command

pytestmark = pytest.mark.e2e

SCRAPE_INTERVAL = 5.0
REPLICAS_APART = 14.0  # what lies between the scrapes of two replicas of a Prometheus
CPU, MODE = "batchjob_job_cpu_seconds_total", ("user", "system")
ACCOUNTING = (
    "JobID", "User", "Account", "Partition", "State", "Start", "End", "UserCPU", "SystemCPU",
    "TotalCPU", "MaxRSS",
)  # fmt: skip


class Job(NamedTuple):
    """A kind of job: who submits what, and how."""

    user: str
    script: str
    options: Sequence[str]


SHORT_JOBS = 12
JOBS: Mapping[str, Job] = {
    "batch": Job("alice", command(cpu=4, memory_mb=120, sleep=1), ("--mem=300M",)),
    "array": Job("bob", command(cpu=1.5), ("--array=0-2", "--mem=60M")),
    "steps": Job(
        "carol",
        f"srun {command(cpu=2)}\nsrun {command(cpu=1)}",
        ("--nodes=2", "--ntasks=2", "--mem=80M"),
    ),
    "het": Job(
        "alice",
        f"srun --het-group=0,1 {command(cpu=1.5)}",
        ("--ntasks=1", "--mem=60M", "--account=astro", ":", "--ntasks=1", "--mem=80M"),
    ),
    "oom": Job(
        "dave", f"{command(cpu=1)}\nsrun {command(memory_mb=200, sleep=2)}", ("--mem=100M",)
    ),
    "cancelled": Job("bob", command(cpu=2, sleep=600), ("--mem=60M",)),
    "short": Job("carol", command(cpu=0.2), (f"--array=1-{SHORT_JOBS}", "--mem=60M")),
}

BURNT: Mapping[str, Sequence[float]] = {  # kind → user seconds of each program of one job
    "batch": (4,), "array": (1.5,), "steps": (2, 2, 1, 1), "het": (1.5,), "oom": (1,),
}  # fmt: skip


class Run(NamedTuple):
    """What is left to ask when all jobs have ended."""

    jobs: Mapping[str, list[str]]  # kind of job → raw ids
    accounting: Mapping[str, list[dict[str, str]]]  # raw id → sacct's rows, the job's own first
    scrapes: list[exporter.Scrape]  # while it ran, and at last one just after the last job's end
    later: exporter.Scrape  # as a second Prometheus would, 14 s after that
    replicas: list[Server]

    def ids(self) -> list[str]:
        """Raw ids of all jobs."""
        return [each for ids in self.jobs.values() for each in ids]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run all jobs once; the tests look at what was seen of them."""
    why_not = slurm.missing(cgroup=1) or prometheus.missing()
    if why_not:
        pytest.skip(why_not)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(slurm.cluster(cgroup=1))
        target = stack.enter_context(
            exporter.running(
                "--collector.disable-defaults", "--collector.jobs", inside=cluster.inside()
            )
        )
        replicas = [
            stack.enter_context(
                prometheus.server([target.address], f"{SCRAPE_INTERVAL:g}s", replica)
            )
            for replica in ("a", "b")
        ]
        submitted = {kind: cluster.submit(*job[:2], *job.options) for kind, job in JOBS.items()}
        scrapes = list(_scrape_while_jobs_run(cluster, target, submitted["cancelled"]))
        time.sleep(REPLICAS_APART)
        later = target.scrape()
        jobs = {kind: cluster.raw_ids(job) for kind, job in submitted.items()}
        accounting = {job: cluster.sacct(job, ACCOUNTING) for ids in jobs.values() for job in ids}
        yield Run(jobs, accounting, scrapes, later, replicas)


def _scrape_while_jobs_run(
    cluster: slurm.Cluster, target: exporter.Target, to_cancel: str
) -> Iterator[exporter.Scrape]:
    while True:
        states = cluster.states()
        if all(state in slurm.FINAL_STATES for state in states.values()):
            break
        yield target.scrape()
        if states.keys() - {to_cancel} and all(
            state in slurm.FINAL_STATES for job, state in states.items() if job != to_cancel
        ):
            cluster.command("scancel", to_cancel)
        time.sleep(1)
    time.sleep(1)
    yield target.scrape()


def seconds(text: str) -> float:
    """CPU time as sacct writes it: [DD-[HH:]]MM:SS[.mmm]."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


def size(text: str) -> float:
    """Bytes as sacct writes them: 3932K."""
    match = re.fullmatch(r"([\d.]+)([KMG]?)", text)
    assert match, text
    return float(match[1]) * 1024 ** " KMG".index(match[2] or " ")


def steps(run: Run, job: str) -> list[dict[str, str]]:
    """Sacct's rows of the user's steps; step extern holds a `sleep` of Slurm's own."""
    return [row for row in run.accounting[job][1:] if not row["JobID"].endswith(".extern")]


def test_every_job_is_seen_with_its_owner(run: Run) -> None:
    """Jobs of a second too; and the owner is the one that the accounting names."""
    for job in run.ids():
        seen = {labels["user"] for labels, _ in run.later.series("batchjob_job_info", jobid=job)}
        assert seen == {run.accounting[job][0]["User"]}, job
    assert len(run.jobs["short"]) == SHORT_JOBS
    assert len(run.jobs["array"]) == 3
    assert len(run.jobs["het"]) == 2


@pytest.mark.parametrize("kind", ["batch", "steps", "het", "array"])
def test_info_tells_account_and_partition(run: Run, kind: str) -> None:
    """But for a het job's second part, whose processes' environment speaks of the first."""
    for part, job in enumerate(run.jobs[kind]):
        [(info, value)] = run.later.series("batchjob_job_info", jobid=job)
        accounted = run.accounting[job][0]
        assert value == 1
        assert info["uid"] == str(slurm_files.USERS[accounted["User"]])
        if kind == "het" and part > 0:
            assert info["het_job_id"] == run.jobs[kind][0]
            assert "account" not in info
        else:
            assert info["account"] == accounted["Account"], job
            assert info["partition"] == accounted["Partition"], job


@pytest.mark.parametrize("kind", BURNT)
def test_cpu_seconds_are_what_the_programs_burnt(run: Run, kind: str) -> None:
    """Each says when it has used its seconds; starting it and the shell takes some more."""
    for job in run.jobs[kind]:
        burnt = sum(BURNT[kind])
        assert burnt <= run.later.total(CPU, jobid=job) <= 1.05 * burnt + 0.3, job


@pytest.mark.parametrize("kind", BURNT)
def test_cpu_seconds_agree_with_sacct(run: Run, kind: str) -> None:
    """User and system time, within 5 % and a tenth of a second.

    On a busy machine Slurm 22.05 now and then counts a program twice: sampled as it ended, and
    then again among the ended children of its shell. Then sacct is right but for that program.
    """
    for job in run.jobs[kind]:
        for mode, column in (("user", "UserCPU"), ("system", "SystemCPU")):
            accounted = sum(seconds(row[column]) for row in steps(run, job))
            twice = BURNT[kind] if mode == "user" else ()
            counted = run.later.value(CPU, jobid=job, mode=mode)
            possible = [accounted, *(accounted - burnt for burnt in twice)]
            assert any(counted == pytest.approx(each, rel=0.05, abs=0.1) for each in possible), (
                job, mode, counted, accounted,
            )  # fmt: skip


def test_cpu_seconds_of_short_jobs(run: Run) -> None:
    """Each burns 0.2 s; sacct, which samples, sees less of some and more of none."""
    for job in run.jobs["short"]:
        counted = run.later.total(CPU, jobid=job)
        assert 0.2 <= counted <= 0.5, job
        assert sum(seconds(row["TotalCPU"]) for row in steps(run, job)) <= counted + 0.05, job


def test_start_and_end(run: Run) -> None:
    """Within 4 s of what Slurm says, in whole seconds; the machine may be busy."""
    for job in run.ids():
        row = run.accounting[job][0]
        for name, column in (("start", "Start"), ("end", "End")):
            counted = run.later.value(f"batchjob_job_{name}_time_seconds", jobid=job)
            assert counted == pytest.approx(float(row[column]), abs=4), (job, name)


def test_memory_peak(run: Run) -> None:
    """The batch job touches 120 MiB; the peak is what the kernel charged, file pages included."""
    [job] = run.jobs["batch"]
    peak = run.later.value("batchjob_job_memory_peak_bytes", jobid=job)
    assert peak is not None
    assert 120 << 20 <= peak <= 180 << 20
    assert peak >= max(size(row["MaxRSS"]) for row in steps(run, job))


def test_memory_limit_and_current_while_it_runs(run: Run) -> None:
    """A live gauge of a running job; ended jobs have none."""
    [job] = run.jobs["batch"]
    limits = {
        value
        for scrape in run.scrapes
        for _, value in scrape.series("batchjob_job_memory_limit_bytes", jobid=job)
    }
    assert limits == {300 << 20}
    for name in ("batchjob_job_memory_current_bytes", "batchjob_job_memory_limit_bytes"):
        assert run.later.series(name, jobid=job) == []


def test_oom_kills(run: Run) -> None:
    """One job is killed for its memory, and only that one says so."""
    [killed] = run.jobs["oom"]
    assert any(row["State"] == "OUT_OF_MEMORY" for row in run.accounting[killed])
    for job in run.ids():
        kills = run.later.value("batchjob_job_oom_kills_total", jobid=job)
        assert kills == (1 if job == killed else 0), job


def test_cancelled_job_keeps_its_counters(run: Run) -> None:
    """All it burned counts, where sacct has only what Slurm sampled last."""
    [job] = run.jobs["cancelled"]
    assert run.accounting[job][0]["State"].startswith("CANCELLED")
    counted = run.later.total(CPU, jobid=job)
    assert sum(seconds(row["TotalCPU"]) for row in steps(run, job)) - 0.1 <= counted <= 2.2


def test_counters_never_fall(run: Run) -> None:
    """From the first scrape to the last, whichever node's part of a job ended first."""
    last: dict[tuple[str, str, str], float] = {}
    for scrape in [*run.scrapes, run.later]:
        for name in scrape.samples:
            if not (name.startswith("batchjob_job_") and name.endswith("_total")):
                continue
            for labels, value in scrape.samples[name]:
                key = (name, labels.get("jobid", ""), str(sorted(labels.items())))
                assert value >= last.get(key, 0.0), key
                last[key] = value


def test_two_scrapers_apart_get_the_same_final_values(run: Run) -> None:
    """A finished job stays, with its counters as they were at its end."""
    for job in run.ids():
        for mode in MODE:
            now = run.scrapes[-1].value(CPU, jobid=job, mode=mode)
            assert now is not None, (job, mode)
            assert now == run.later.value(CPU, jobid=job, mode=mode), (job, mode)


def test_both_prometheus_servers_have_the_final_values(run: Run) -> None:
    """What a real Prometheus stored is what the exporter says, for every job."""
    for server in run.replicas:
        assert [each.value for each in server.query("up")] == [1.0]
        stored = {
            (each.labels["jobid"], each.labels["mode"]): each.value
            for each in server.query(f"last_over_time({CPU}[10m])")
        }
        for job in run.ids():
            for mode in MODE:
                assert stored[job, mode] == run.later.value(CPU, jobid=job, mode=mode), (job, mode)


def test_prometheus_refuses_no_sample(run: Run) -> None:
    """None twice, none out of order, none without a time it can store."""
    for server in run.replicas:
        own = server.own_metrics()
        for reason in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
            assert own.total(f"prometheus_target_scrapes_sample_{reason}_total") == 0, reason
