"""Exit codes as sacct, squeue and slurmctld print them; the pairs were seen with 22.05.8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.slurm.accounting.exit_codes import (
    parse_exit_pair,
    prints_exit_statuses,
    sacct_exit,
    wait_status_code,
    with_known_exit_codes,
)
from batchjob.schedulers.slurm.accounting.queries import ParsedJob, collect_batch, with_steps
from batchjob.schedulers.slurm.accounting.sacct_records import job_record, step_record
from batchjob.schedulers.slurm.accounting.site_accounting import SiteAccounting
from batchjob.schedulers.slurm.accounting.squeue_records import parse_json_queue, queued_jobs
from batchjob.schedulers.states import JobState

OLD = SiteAccounting(exact_exits=False)


@pytest.mark.parametrize(
    ("version", "exact"),
    [
        ("slurm-wlm 22.05.8", False),
        ("slurm 24.11.5", False),
        ("slurm 25.05.3", False),
        ("slurm 25.11.0", True),
        ("slurm 26.05.3\n", True),
        ("", False),
    ],
)
def test_releases_that_print_exit_statuses(version, exact):
    assert prints_exit_statuses(version) is exact


@pytest.mark.parametrize(
    ("printed", "state", "status"),
    [
        ("0:0", JobState.COMPLETED, (0, 0, None)),
        ("1:0", JobState.FAILED, (None, 0, 1)),
        ("127:0", JobState.FAILED, (None, 0, 127)),  # of exit 127 and of exit 255
        ("0:0", JobState.FAILED, (None, 0, 0)),  # of exit 128, and of a step that was not launched
        ("0:9", JobState.FAILED, (0, 9, None)),
        ("0:125", JobState.OUT_OF_MEMORY, (0, 125, None)),
        ("0:0", JobState.TIMEOUT, (0, 0, None)),
    ],
)
def test_exit_code_of_sacct_up_to_25_05(printed, state, status):
    assert sacct_exit(parse_exit_pair(printed), state, exact=False) == status


@pytest.mark.parametrize("printed", ["1:0", "127:0", "200:0", "255:0", "0:11"])
def test_exit_code_of_sacct_since_25_11(printed):
    code, signal = (int(each) for each in printed.split(":"))
    read = sacct_exit(parse_exit_pair(printed), JobState.FAILED, exact=True)
    assert read == (code, signal, None)


@pytest.mark.parametrize(
    ("status", "code"), [("32512", 127), ("65280", 255), ("32768", 128), ("256", 1), ("9", None)]
)
def test_wait_status_of_squeue(status, code):
    assert wait_status_code(status) == code


def record(exit_code, *steps, derived="0:0", state="FAILED"):
    """A job of id 7 from rows of sacct, with steps as pairs of name and ExitCode."""
    row = {"JobIDRaw": "7", "JobID": "7", "State": state, "ExitCode": exit_code,
           "DerivedExitCode": derived, "Submit": "1795754551", "Start": "1795754551",
           "End": "1795754552"}  # fmt: skip
    failed = {"State": "FAILED", "End": "1795754552"}
    found = [
        step_record(name, FieldReader(failed | {"ExitCode": code}), OLD) for name, code in steps
    ]
    return with_steps(job_record("c", "7", FieldReader(row), OLD), found, OLD)


def codes(job):
    return job.exit_code, {step.step: step.exit_code for step in job.steps}


@given(code=st.integers(1, 255))
def test_code_of_the_controller_is_that_of_the_job_and_its_batch_step(code):
    printed = f"{code % 128}:0"
    job = record(printed, ("batch", printed))
    assert codes(job) == (None, {"batch": None})
    assert (job.exit_code_or_128_more, job.exit_signal) == (code % 128, 0)
    assert codes(with_known_exit_codes(job, {("7", 1795754551): code})) == (code, {"batch": code})


def test_code_of_another_run_or_of_an_edited_record_is_not_taken():
    job = record("127:0", ("batch", "127:0"))
    for known in ({("7", 1795754550): 255}, {("7", 1795754551): 3}, {}):
        assert codes(with_known_exit_codes(job, known)) == (None, {"batch": None})


def test_code_of_a_step_follows_from_the_derived_one():
    job = record("0:0", ("batch", "3:0"), ("0", "127:0"), derived="255:0", state="COMPLETED")
    assert codes(with_known_exit_codes(job, {})) == (0, {"batch": None, "0": 255})
    job = record("3:0", ("0", "0:0"), ("1", "5:0"), derived="128:0")
    assert codes(with_known_exit_codes(job, {})) == (None, {"0": 128, "1": None})


def test_code_of_a_step_does_not_follow_while_another_runs_or_may_outlive_its_part():
    job = record("0:0", ("0", "127:0"), ("1", "0:0"), derived="255:0", state="COMPLETED")
    running = job.steps[1]._replace(end_time=None, exit_code=None)
    for part in (job._replace(steps=(job.steps[0], running)), job._replace(state=JobState.RESIZED)):
        assert codes(with_known_exit_codes(part, {}))[1]["0"] is None


def test_code_of_a_step_that_ended_after_its_job_is_not_derived():
    job = record("3:0", ("0", "127:0"), ("1", "127:0"), derived="127:0")
    late = job.steps[1]._replace(end_time=job.end_time + 1)
    job = job._replace(steps=(job.steps[0], late))
    assert codes(with_known_exit_codes(job, {}))[1] == {"0": 127, "1": None}


def test_code_of_a_step_does_not_follow_from_that_of_an_earlier_part():
    first = record("0:0", ("0", "127:0"), derived="255:0", state="RESIZING")
    later = record("0:0", ("1", "127:0"), derived="255:0", state="COMPLETED")
    later = with_known_exit_codes(later._replace(submit_time=first.end_time), {})
    batch = collect_batch([ParsedJob(first), ParsedJob(later)])
    assert [step.exit_code for job in batch.jobs for step in job.steps] == [None, None]


def test_one_derived_code_does_not_tell_which_of_two_equal_steps_it_is():
    job = record("3:0", ("0", "127:0"), ("1", "127:0"), derived="255:0")
    assert codes(with_known_exit_codes(job, {}))[1] == {"0": None, "1": None}
    job = record("3:0", ("0", "127:0"), ("1", "127:0"), derived="127:0")
    assert codes(with_known_exit_codes(job, {}))[1] == {"0": 127, "1": 127}


@pytest.mark.parametrize(
    ("state", "exit_code", "found"),
    [
        (["FAILED"], 65280, [255]),
        (["FAILED"], {"return_code": 255}, []),  # of releases whose accounting has it as well
        (["COMPLETED"], 0, []),
        (["RUNNING"], 0, [None]),
    ],
)
def test_exit_codes_in_the_json_of_the_controller(state, exit_code, found):
    job = {"job_id": 7, "job_state": state, "exit_code": exit_code, "submit_time": 1795754551,
           "start_time": 1795754551, "end_time": 1795754552, "user_name": "alice"}  # fmt: skip
    queue = queued_jobs("slurm_rest", "c", parse_json_queue({"jobs": [job]}))
    assert [parsed.job.exit_code for parsed in queue] == found
