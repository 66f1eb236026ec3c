"""A real Slurm on cgroup v2 with the memory and io controllers, in User Mode Linux.

CPU time comes in ticks of 10 ms there, and one emulated CPU does everything.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tests.e2e import exporter, guest_slurm, slurm, slurm_files, uml

pytestmark = pytest.mark.e2e

CPU = "batchjob_job_cpu_seconds_total"
TICK = 0.01
MIB = 1 << 20


class GuestReport(NamedTuple):
    """The report of guest_slurm.py."""

    jobs: Mapping[str, list[str]]  # kind of job → raw ids
    states: Mapping[str, str]  # raw id → Slurm's state
    before: Mapping[str, Mapping[str, str]]  # kind → file → text, just before `during`
    after: Mapping[str, Mapping[str, str]]
    during: exporter.Scrape
    ended: exporter.Scrape

    def between(self, kind: str, name: str) -> tuple[float, float]:
        """The kernel's value before and after the scrape."""
        return float(self.before[kind][name]), float(self.after[kind][name])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> GuestReport:
    """Boot, run all jobs once, power off."""
    why_not = uml.missing() or slurm.missing(cgroup=2, accounting=False)
    if why_not:
        pytest.skip(why_not)
    guest_report = uml.run("tests.e2e.guest_slurm", tmp_path_factory.mktemp("uml"))
    for moment in ("during", "ended"):
        at, text = guest_report[moment]
        guest_report[moment] = exporter.parse(text, at)
    return GuestReport(**guest_report)


def parse_flat_keyed_file(text: str) -> dict[str, float]:
    """Values of a flat keyed cgroup file: `usage_usec 5\\nuser_usec 3`."""
    return {key: float(value) for key, value in map(str.split, text.splitlines())}


def test_every_job_is_seen_with_its_owner(report: GuestReport) -> None:
    """Including ended jobs; short ones may lack it, as the one emulated CPU is slow."""
    for kind, ids in report.jobs.items():
        user = guest_slurm.JOBS[kind][0]
        uid = str(slurm_files.USERS[user])
        accepted_owners = {(user, uid)} | ({("", None)} if kind == "short" else set())
        for job in ids:
            [(info, _)] = report.ended.series("batchjob_job_info", jobid=job)
            assert (info["user"], info.get("uid")) in accepted_owners, kind
    assert len(report.jobs["short"]) == 5


def test_memory_of_running_job(report: GuestReport) -> None:
    """Between the kernel's values before and after; the job touches 60 of its 150 MiB."""
    [job] = report.jobs["batch"]
    for name, file in (("current", "memory.current"), ("peak", "memory.peak")):
        low, high = sorted(report.between("batch", file))
        value = report.during.value(f"batchjob_job_memory_{name}_bytes", jobid=job)
        assert value is not None
        assert low - MIB <= value <= high + MIB, name
        assert 60 * MIB <= value <= 100 * MIB, name
    assert report.during.value("batchjob_job_memory_limit_bytes", jobid=job) == 150 * MIB
    anon = report.during.value("batchjob_job_memory_anon_bytes", jobid=job)
    assert anon is not None
    assert 60 * MIB <= anon <= 100 * MIB


def test_memory_peak_is_kept_after_job_end(report: GuestReport) -> None:
    """Peaks and counters of an ended job are kept; its live gauges are gone."""
    [job] = report.jobs["batch"]
    peak = report.ended.value("batchjob_job_memory_peak_bytes", jobid=job)
    assert peak is not None
    assert 60 * MIB <= peak <= 100 * MIB
    assert report.ended.series("batchjob_job_memory_current_bytes", jobid=job) == []


def test_cpu_seconds_of_running_job(report: GuestReport) -> None:
    """As in the job's cpu.stat, for user and system."""
    [job] = report.jobs["batch"]
    low, high = (
        parse_flat_keyed_file(moment["batch"]["cpu.stat"])
        for moment in (report.before, report.after)
    )
    for mode in ("user", "system"):
        value = report.during.value(CPU, jobid=job, mode=mode)
        assert value is not None
        assert low[f"{mode}_usec"] / 1e6 - TICK <= value <= high[f"{mode}_usec"] / 1e6 + TICK, mode


@pytest.mark.parametrize(
    ("kind", "burned"),
    [("batch", 1.5), ("steps", 1.0), ("cancelled", 0.5), ("short", 0.1)],
)
def test_cpu_seconds_of_ended_jobs(report: GuestReport, kind: str, burned: float) -> None:
    """The program's CPU time and that of its start: on v2, slurmstepd is part of the job."""
    for job in report.jobs[kind]:
        counted = report.ended.total(CPU, jobid=job)
        assert counted >= report.during.total(CPU, jobid=job), job
        assert counted >= burned - 5 * TICK, job


def test_oom_kills(report: GuestReport) -> None:
    """The step's cgroup is gone by then; the job still counts the kill."""
    [oom_job] = report.jobs["oom"]
    for ids in report.jobs.values():
        for job in ids:
            kills = report.ended.value("batchjob_job_oom_kills_total", jobid=job)
            assert kills == (1 if job == oom_job else 0), job


def test_block_io(report: GuestReport) -> None:
    """20 MiB written and 10 MiB read, bypassing the page cache."""
    [job] = report.jobs["io"]
    for scrape in (report.during, report.ended):
        read = scrape.value("batchjob_job_io_read_bytes_total", jobid=job)
        written = scrape.value("batchjob_job_io_written_bytes_total", jobid=job)
        assert (read, written) == (10 * MIB, 20 * MIB)


def test_ended_jobs_have_end_time_and_are_not_live(report: GuestReport) -> None:
    """The node has no live jobs any more."""
    for ids in report.jobs.values():
        for job in ids:
            start = report.ended.value("batchjob_job_start_time_seconds", jobid=job)
            end = report.ended.value("batchjob_job_end_time_seconds", jobid=job)
            assert start is not None
            assert end is not None
            assert start <= end <= report.ended.time + 1
    assert report.during.value("batchjob_jobs", manager="slurm") == 3
    assert (report.ended.value("batchjob_jobs", manager="slurm") or 0) == 0


def test_cancelled_job_has_no_end_time_while_it_runs(report: GuestReport) -> None:
    """Running in the first scrape; Slurm reports it as cancelled."""
    [job] = report.jobs["cancelled"]
    assert report.states[job] == "CANCELLED"
    assert report.during.series("batchjob_job_end_time_seconds", jobid=job) == []
