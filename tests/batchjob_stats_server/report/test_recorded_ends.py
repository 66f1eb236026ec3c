"""What the headline says of real ends: the jobs of Slurm 26.05.3, as sacct recorded them."""

import lzma
from pathlib import Path

import pytest

from batchjob.schedulers.slurm.accounting.queries import collect_batch
from batchjob.schedulers.slurm.accounting.sacct_records import parse_jobs, parse_rows
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report.headline import headline
from batchjob_stats_server.report.model import ReportInput
from tests.batchjob_stats_server.report.test_report import EMPTY, UNMEASURED, row

RECORDING = Path(__file__).parents[2] / "fixtures/accounting/slurm-26.05.3.sacct.xz"


@pytest.fixture(scope="module")
def headlines():
    """The headlines of the runs of each job, by id and state."""
    head, _, body = lzma.decompress(RECORDING.read_bytes()).partition(b"\n")
    fields = head.decode().strip("\x02").split("\x02")
    jobs = collect_batch(parse_jobs("c1", parse_rows(body, fields, "\x02"))).jobs
    return {(job.jobid, job.state): headline(report_input(job)) for job in jobs}


def report_input(job):
    values = job._asdict() | {"username": job.user}
    known = {name: values[name] for name in EMPTY if name in values}
    steps = [step._asdict() for step in job.steps]
    return ReportInput(row(**UNMEASURED, **known), 1_800_000_000, steps=steps)


@pytest.mark.parametrize(
    ("jobid", "state", "text"),
    [
        ("1", JobState.COMPLETED, ""),
        ("8", JobState.COMPLETED, ""),
        ("9", JobState.FAILED, "Failed with exit code 3: set by the program; see its output."),
        ("12", JobState.CANCELLED,
         "Cancelled by root or an administrator (uid 0) before it started."),
        ("24", JobState.DEADLINE,
         "It was terminated because it could not finish before its deadline."),
        ("30", JobState.FAILED,
         "Failed: out of memory in step 0 on nn02: the kernel killed a process."
         " The job had 100 MiB, and the step's peak was 94.6 MiB."),
        ("31", JobState.OUT_OF_MEMORY,
         "Out of memory in step batch on nn01: the kernel killed a process."
         " The job had 100 MiB, and the step's peak was 99.6 MiB."),
        ("34", JobState.REQUEUED, "This run ended and the job was requeued."),
        ("48", JobState.FAILED, "Failed with exit code 7: set by the program; see its output."),
        ("60", JobState.NODE_FAIL,
         "A node of nn04 failed while it ran. This is not a fault of the job; submit it again."),
        ("62", JobState.FAILED, "Failed with exit code 200: set by the program; see its output."),
    ],
)  # fmt: skip
def test_headline_of_a_recorded_end(headlines, jobid, state, text):
    assert headlines[jobid, state] == text


def test_a_crash_is_a_signal_and_no_reason_of_waiting_explains_an_end(headlines):
    for jobid in ("10", "11"):
        assert "signal 11 (SIGSEGV)" in headlines[jobid, JobState.FAILED]
    assert not [text for text in headlines.values() if "The scheduler says" in text]
    assert "out of memory in step 0" in headlines["32", JobState.COMPLETED]
