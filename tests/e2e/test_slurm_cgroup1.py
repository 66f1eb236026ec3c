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
REPLICA_OFFSET_SECONDS = 14.0  # between the scrapes of two replicas of a Prometheus
CPU, MODES = "batchjob_job_cpu_seconds_total", ("user", "system")
SACCT_FIELDS = (
    "JobID", "User", "Account", "Partition", "State", "Start", "End", "UserCPU", "SystemCPU",
    "TotalCPU", "MaxRSS",
)  # fmt: skip


class JobKind(NamedTuple):
    """A kind of job: user, script and options of sbatch."""

    user: str
    script: str
    options: Sequence[str]


SHORT_JOBS = 12
JOB_KINDS: Mapping[str, JobKind] = {
    "batch": JobKind("alice", command(cpu=4, memory_mb=120, sleep=1), ("--mem=300M",)),
    "array": JobKind("bob", command(cpu=1.5), ("--array=0-2", "--mem=60M")),
    "steps": JobKind(
        "carol",
        f"srun {command(cpu=2)}\nsrun {command(cpu=1)}",
        ("--nodes=2", "--ntasks=2", "--mem=80M"),
    ),
    "het": JobKind(
        "alice",
        f"srun --het-group=0,1 {command(cpu=1.5)}",
        ("--ntasks=1", "--mem=60M", "--account=astro", ":", "--ntasks=1", "--mem=80M"),
    ),
    "oom": JobKind(
        "dave", f"{command(cpu=1)}\nsrun {command(memory_mb=200, sleep=2)}", ("--mem=100M",)
    ),
    "cancelled": JobKind("bob", command(cpu=2, sleep=600), ("--mem=60M",)),
    "short": JobKind("carol", command(cpu=0.2), (f"--array=1-{SHORT_JOBS}", "--mem=60M")),
}

BURNED_SECONDS: Mapping[str, Sequence[float]] = {  # kind → user seconds of each program of one job
    "batch": (4,), "array": (1.5,), "steps": (2, 2, 1, 1), "het": (1.5,), "oom": (1,),
}  # fmt: skip


class RunResults(NamedTuple):
    """What was recorded until all jobs had ended."""

    jobs: Mapping[str, list[str]]  # kind of job → raw ids
    accounting: Mapping[str, list[dict[str, str]]]  # raw id → sacct's rows, the job's own first
    scrapes: list[exporter.Scrape]  # while jobs ran, and one just after the last job's end
    later_scrape: exporter.Scrape  # 14 s after that, as by a second Prometheus
    replicas: list[Server]

    def all_ids(self) -> list[str]:
        """Raw ids of all jobs."""
        return [each for ids in self.jobs.values() for each in ids]


@pytest.fixture(scope="module")
def results() -> Iterator[RunResults]:
    """Run all jobs once and record what the exporter and Slurm report of them."""
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
        submitted = {
            kind: cluster.submit(*job[:2], *job.options) for kind, job in JOB_KINDS.items()
        }
        scrapes = list(_scrape_while_jobs_run(cluster, target, submitted["cancelled"]))
        time.sleep(REPLICA_OFFSET_SECONDS)
        later_scrape = target.scrape()
        jobs = {kind: cluster.raw_ids(job) for kind, job in submitted.items()}
        accounting = {job: cluster.sacct(job, SACCT_FIELDS) for ids in jobs.values() for job in ids}
        yield RunResults(jobs, accounting, scrapes, later_scrape, replicas)


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


def parse_cpu_time(text: str) -> float:
    """CPU time as sacct writes it: [DD-[HH:]]MM:SS[.mmm]."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)


def parse_size(text: str) -> float:
    """Bytes as sacct writes them: 3932K."""
    match = re.fullmatch(r"([\d.]+)([KMG]?)", text)
    assert match, text
    return float(match[1]) * 1024 ** " KMG".index(match[2] or " ")


def user_steps(results: RunResults, job: str) -> list[dict[str, str]]:
    """Sacct's rows of the user's steps; step extern holds a `sleep` of Slurm's own."""
    return [row for row in results.accounting[job][1:] if not row["JobID"].endswith(".extern")]


def test_every_job_is_seen_with_its_owner(results: RunResults) -> None:
    """Including jobs of one second; the owner is the same as in accounting."""
    for job in results.all_ids():
        users = {
            labels["user"]
            for labels, _ in results.later_scrape.series("batchjob_job_info", jobid=job)
        }
        assert users == {results.accounting[job][0]["User"]}, job
    assert len(results.jobs["short"]) == SHORT_JOBS
    assert len(results.jobs["array"]) == 3
    assert len(results.jobs["het"]) == 2


@pytest.mark.parametrize("kind", ["batch", "steps", "het", "array"])
def test_job_info_has_account_and_partition(results: RunResults, kind: str) -> None:
    """A het job's second component has its own, although its environment names the first one's."""
    for part, job in enumerate(results.jobs[kind]):
        [(info, value)] = results.later_scrape.series("batchjob_job_info", jobid=job)
        sacct_row = results.accounting[job][0]
        assert value == 1
        assert info["uid"] == str(slurm_files.USERS[sacct_row["User"]])
        if kind == "het" and part > 0:
            assert info["het_job_id"] == results.jobs[kind][0]
        assert info["account"] == sacct_row["Account"], job
        assert info["partition"] == sacct_row["Partition"], job


@pytest.mark.parametrize("kind", BURNED_SECONDS)
def test_cpu_seconds_match_known_usage(results: RunResults, kind: str) -> None:
    """The programs burn a known CPU time; starting them and the shell takes some more."""
    for job in results.jobs[kind]:
        burned = sum(BURNED_SECONDS[kind])
        assert burned <= results.later_scrape.total(CPU, jobid=job) <= 1.05 * burned + 0.3, job


@pytest.mark.parametrize("kind", BURNED_SECONDS)
def test_cpu_seconds_agree_with_sacct(results: RunResults, kind: str) -> None:
    """User and system time, within 5 % and a tenth of a second.

    On a busy machine Slurm 22.05 sometimes counts a program twice: sampled as it ended, and again
    among the ended children of its shell. Then sacct is correct except for that program.
    """
    for job in results.jobs[kind]:
        for mode, column in (("user", "UserCPU"), ("system", "SystemCPU")):
            sacct_value = sum(parse_cpu_time(row[column]) for row in user_steps(results, job))
            counted_twice = BURNED_SECONDS[kind] if mode == "user" else ()
            counted = results.later_scrape.value(CPU, jobid=job, mode=mode)
            accepted = [sacct_value, *(sacct_value - burned for burned in counted_twice)]
            assert any(counted == pytest.approx(each, rel=0.05, abs=0.1) for each in accepted), (
                job, mode, counted, sacct_value,
            )  # fmt: skip


def test_cpu_seconds_of_short_jobs(results: RunResults) -> None:
    """Each burns 0.2 s; sacct samples, so it may report less but never more."""
    for job in results.jobs["short"]:
        counted = results.later_scrape.total(CPU, jobid=job)
        assert 0.2 <= counted <= 0.5, job
        sacct_value = sum(parse_cpu_time(row["TotalCPU"]) for row in user_steps(results, job))
        assert sacct_value <= counted + 0.05, job


def test_start_and_end(results: RunResults) -> None:
    """Within 4 s of Slurm's times, which are whole seconds; the machine may be busy."""
    for job in results.all_ids():
        row = results.accounting[job][0]
        for name, column in (("start", "Start"), ("end", "End")):
            counted = results.later_scrape.value(f"batchjob_job_{name}_time_seconds", jobid=job)
            assert counted == pytest.approx(float(row[column]), abs=4), (job, name)


def test_memory_peak(results: RunResults) -> None:
    """The batch job touches 120 MiB; the peak includes file pages charged by the kernel."""
    [job] = results.jobs["batch"]
    peak = results.later_scrape.value("batchjob_job_memory_peak_bytes", jobid=job)
    assert peak is not None
    assert 120 << 20 <= peak <= 180 << 20
    assert peak >= max(parse_size(row["MaxRSS"]) for row in user_steps(results, job))


def test_memory_limit_and_current_usage_of_running_job(results: RunResults) -> None:
    """Gauges of running jobs only; ended jobs have none."""
    [job] = results.jobs["batch"]
    limits = {
        value
        for scrape in results.scrapes
        for _, value in scrape.series("batchjob_job_memory_limit_bytes", jobid=job)
    }
    assert limits == {300 << 20}
    for name in ("batchjob_job_memory_current_bytes", "batchjob_job_memory_limit_bytes"):
        assert results.later_scrape.series(name, jobid=job) == []


def test_oom_kills(results: RunResults) -> None:
    """Only the job that was killed for its memory counts an OOM kill."""
    [oom_job] = results.jobs["oom"]
    assert any(row["State"] == "OUT_OF_MEMORY" for row in results.accounting[oom_job])
    for job in results.all_ids():
        kills = results.later_scrape.value("batchjob_job_oom_kills_total", jobid=job)
        assert kills == (1 if job == oom_job else 0), job


def test_cancelled_job_keeps_its_counters(results: RunResults) -> None:
    """All CPU time it burned counts; sacct only has Slurm's last sample."""
    [job] = results.jobs["cancelled"]
    assert results.accounting[job][0]["State"].startswith("CANCELLED")
    counted = results.later_scrape.total(CPU, jobid=job)
    sacct_value = sum(parse_cpu_time(row["TotalCPU"]) for row in user_steps(results, job))
    assert sacct_value - 0.1 <= counted <= 2.2


def test_counters_never_fall(results: RunResults) -> None:
    """From the first scrape to the last, whichever node's part of a job ends first."""
    last_values: dict[tuple[str, str, str], float] = {}
    for scrape in [*results.scrapes, results.later_scrape]:
        for name in scrape.samples:
            if not (name.startswith("batchjob_job_") and name.endswith("_total")):
                continue
            for labels, value in scrape.samples[name]:
                key = (name, labels.get("jobid", ""), str(sorted(labels.items())))
                assert value >= last_values.get(key, 0.0), key
                last_values[key] = value


def test_final_values_do_not_change_after_job_end(results: RunResults) -> None:
    """A finished job keeps its counters as they were at its end."""
    for job in results.all_ids():
        for mode in MODES:
            at_end = results.scrapes[-1].value(CPU, jobid=job, mode=mode)
            assert at_end is not None, (job, mode)
            assert at_end == results.later_scrape.value(CPU, jobid=job, mode=mode), (job, mode)


def test_both_prometheus_servers_have_the_final_values(results: RunResults) -> None:
    """Prometheus stored the exporter's values for every job."""
    for server in results.replicas:
        assert [each.value for each in server.query("up")] == [1.0]
        stored = {
            (each.labels["jobid"], each.labels["mode"]): each.value
            for each in server.query(f"last_over_time({CPU}[10m])")
        }
        for job in results.all_ids():
            for mode in MODES:
                final_value = results.later_scrape.value(CPU, jobid=job, mode=mode)
                assert stored[job, mode] == final_value, (job, mode)


def test_prometheus_rejects_no_sample(results: RunResults) -> None:
    """No sample is a duplicate, out of order or out of bounds."""
    for server in results.replicas:
        own_metrics = server.own_metrics()
        for reason in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
            assert own_metrics.total(f"prometheus_target_scrapes_sample_{reason}_total") == 0, (
                reason
            )
