"""Parsing of sacct's output: rows, fields, quarantine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import SourceError
from batchjob.schedulers.records import QuarantinedRow
from batchjob.schedulers.slurm.accounting.queries import ParsedJob, collect_batch
from batchjob.schedulers.slurm.accounting.sacct_records import (
    FIELDS,
    REQUIRED_FIELDS,
    parse_jobs,
    parse_rows,
)
from batchjob.schedulers.slurm.accounting.site_accounting import site_accounting

GB = 1024**3

ROW = dict.fromkeys(FIELDS, "") | {
    "JobIDRaw": "77", "JobID": "77", "State": "COMPLETED", "ExitCode": "0:0", "User": "alice",
    "UID": "1001", "Submit": "1775300000", "Start": "1775300100", "End": "1775304000",
    "NodeList": "n1", "AllocTRES": "cpu=4,mem=8G,node=1,gres/gpu=1,gres/gpu:a100=1",
}  # fmt: skip


def sacct_output(*changes: dict[str, str], delimiter="\x1f!") -> bytes:
    lines = [[(ROW | change)[field] for field in FIELDS] for change in changes]
    text = "".join("".join(cell + delimiter for cell in line) + "\n" for line in lines)
    return text.encode("utf-8", "surrogateescape")


def parse_output(output: bytes) -> list[ParsedJob]:
    return list(parse_jobs("c1", parse_rows(output, FIELDS, "\x1f!")))


def test_typed_gpus_are_not_counted_twice():
    (parsed,) = parse_output(sacct_output({}))
    assert (parsed.job.allocated_gpus, parsed.job.allocated_memory_bytes) == (1, 8 * GB)


def test_text_among_rows_is_quarantined_and_no_row_is_lost():
    output = (
        sacct_output({})
        + b"sacct: error: slurm_persist_conn_open failed\n"
        + sacct_output({"JobIDRaw": "78"})
    )
    parsed = parse_output(output)
    assert [each.job.jobid for each in parsed if each.job] == ["77", "78"]
    (bad,) = [bad for each in parsed for bad in each.quarantined]
    assert bad == QuarantinedRow(
        "sacct", "text among the rows", "sacct: error: slurm_persist_conn_open failed"
    )


@pytest.mark.parametrize("cut", [1, 3, 40, 200])
def test_output_truncated_within_row_is_an_error(cut):
    output = sacct_output({}, {"JobIDRaw": "78"})
    with pytest.raises(SourceError, match="ends within a row"):
        parse_output(output[: -cut - 2])


@pytest.mark.parametrize("length", [100, 65_533, 65_536, 70_001, 200_000])
def test_long_fields_are_read_completely(length):
    """Output is parsed in chunks; no field or character is lost at their boundaries."""
    names = [f"é{number}" * (length // 3) for number in range(3)]
    found = parse_rows(sacct_output(*({"JobName": name} for name in names)), FIELDS, "\x1f!")
    assert [row.values["JobName"] for row in found] == names


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"JobIDRaw": "7x"}, "JobIDRaw: expected a job id"),
        ({"Submit": "Unknown"}, "Submit is missing"),
        ({"Submit": "2026-04-04T12:00:00"}, "Submit: expected a whole number"),
        ({"State": ""}, "State is missing"),
    ],
)
def test_row_without_key_or_state_is_quarantined_with_its_text(change, reason):
    parsed = parse_output(sacct_output(change, {"JobIDRaw": "78"}))
    assert [each.job.jobid for each in parsed if each.job] == ["78"]
    (bad,) = [bad for each in parsed for bad in each.quarantined]
    assert bad.reason.startswith(reason)
    assert "alice" in bad.raw


TIMES = ("Eligible", "Start", "End", "ElapsedRaw", "Suspended", "TimelimitRaw", "TotalCPU")


@pytest.mark.parametrize("column", TIMES)
@pytest.mark.parametrize("text", ["INVALID", "Unknown", "None", "-1", "16?", "9" * 30])
def test_time_that_is_none_is_missing_and_the_row_is_kept(column, text):
    (parsed,) = parse_output(sacct_output({column: text}))
    assert (parsed.job.jobid, parsed.job.user, parsed.job.state) == ("77", "alice", "COMPLETED")
    names = ("eligible_time", "start_time", "end_time", "elapsed_seconds", "suspended_seconds",
             "time_limit_seconds", "cpu_seconds")  # fmt: skip
    assert getattr(parsed.job, names[TIMES.index(column)]) in (None, -60)
    assert all(bad.jobid == "77" and column in bad.reason for bad in parsed.quarantined)


@pytest.mark.parametrize(
    ("nodes", "steps", "cpus"),
    [
        ("2", {"extern": "cpu=8,mem=2G,node=2", "0": "cpu=4,node=2"}, 8),
        ("2", {"batch": "cpu=4,mem=1G,node=1"}, None),
        ("1", {"batch": "cpu=6,mem=1G,node=1"}, 6),
        ("1", {}, None),  # a reading without steps, or a part in which none began
    ],
)
def test_resized_job_held_what_its_first_steps_have(nodes, steps, cpus):
    resized = {"State": "RESIZING", "AllocNodes": nodes, "AllocTRES": "cpu=2,mem=1G,node=1"}
    rows = [{"JobIDRaw": f"77.{name}", "AllocTRES": tres} for name, tres in steps.items()]
    (parsed,) = parse_output(sacct_output(resized, *rows))
    assert (parsed.job.allocated_cpus, parsed.quarantined) == (cpus, ())


def test_release_with_few_fields_has_resized_jobs_as_well():
    fields = sorted(REQUIRED_FIELDS)
    rows = [ROW | {"State": "RESIZING"}, ROW | {"JobIDRaw": "77.batch", "State": "COMPLETED"}]
    output = "".join("".join(row[field] + "\x1f!" for field in fields) + "\n" for row in rows)
    ((job, _),) = parse_jobs("c1", parse_rows(output.encode(), fields, "\x1f!"))
    assert (job.state, job.allocated_cpus, len(job.steps)) == ("RESIZED", None, 1)


def test_row_of_a_job_in_its_first_second():
    """Seen with 22.05: PENDING on a node without CPUs, until the start arrives."""
    first = {
        "State": "PENDING", "Start": "Unknown", "End": "Unknown", "ReqCPUS": "0", "ReqNodes": "0",
        "ReqTRES": "", "AllocTRES": "", "ExitCode": "0:0",
    }  # fmt: skip
    (parsed,) = parse_output(sacct_output(first))
    job = parsed.job
    assert (job.requested_cpus, job.requested_nodes, job.allocated_cpus) == (None, None, None)
    assert (job.node_list, job.nodes, parsed.quarantined) == ("", (), ())


def test_job_that_never_started_holds_nothing():
    """Some releases repeat the end time as the start of a job cancelled while it waited."""
    held = {"AllocTRES": "cpu=4,mem=8G,node=1", "NodeList": "None assigned"}
    (parsed,) = parse_output(sacct_output({**held, "State": "CANCELLED by 0"}))
    job = parsed.job
    assert (job.start_time, job.allocated_cpus, job.allocated_resources) == (None, None, "")
    assert (job.elapsed_seconds, job.cpu_seconds, job.nodes) == (None, None, ())


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("CANCELLED", "Dependency", "DependencyNeverSatisfied"),  # --kill-on-invalid-dep
        ("CANCELLED by 1001", "Dependency", "Dependency"),
        ("CANCELLED", "JobHeldUser", "JobHeldUser"),
        ("PENDING", "Dependency", "Dependency"),
    ],
)
def test_job_that_slurm_cancels_for_its_dependency(state, reason, shown):
    waiting = {"Start": "None", "NodeList": "None assigned", "AllocTRES": ""}
    (parsed,) = parse_output(sacct_output({**waiting, "State": state, "Reason": reason}))
    assert parsed.job.reason == shown


def test_invalid_field_does_not_discard_the_row():
    (parsed,) = parse_output(sacct_output({"AllocTRES": "cpu=lots", "NodeList": "n[3-1]"}))
    assert (parsed.job.user, parsed.job.allocated_cpus, parsed.job.nodes) == ("alice", None, ())
    (bad,) = parsed.quarantined
    assert "AllocTRES: expected a size" in bad.reason
    assert "NodeList: not a range" in bad.reason


def test_steps_of_invalid_job_are_not_added_to_another_job():
    parsed = parse_output(
        sacct_output({}, {"JobIDRaw": "78", "State": ""}, {"JobIDRaw": "78.0", "JobID": "78.0"})
    )
    assert [each.job.steps for each in parsed if each.job] == [()]
    assert len([bad for each in parsed for bad in each.quarantined]) == 2


def test_job_names_are_kept_or_sanitized_for_the_database():
    for name in ("a|b", 'q"uote', "new\nline", "\n", "x" * 10_000, "\x1f", "ünï"):
        (parsed,) = parse_output(sacct_output({"JobName": name}))
        assert parsed.job.name == name
    (parsed,) = parse_output(sacct_output({"JobName": "nul\0 byte\udcff"}))
    assert parsed.job.name == "nul\ufffd byte\\xff"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_job_name_cannot_forge_or_hide_a_row(name):
    if "\x1f!" in name:
        return
    parsed = parse_output(sacct_output({"JobName": name}, {"JobIDRaw": "78", "SubmitLine": name}))
    assert [(each.job.jobid, each.job.user) for each in parsed] == [
        ("77", "alice"),
        ("78", "alice"),
    ]
    assert parsed[0].job.name == name.replace("\0", "\ufffd")


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_raise_source_error(output):
    try:
        parse_output(output)
    except SourceError:
        pass
    else:
        assert b"\x1f!" not in output


def test_100_000_nodes():
    (parsed,) = parse_output(
        sacct_output({"NodeList": "n[000000-099999]", "AllocTRES": "cpu=800000,node=100000"})
    )
    assert len(parsed.job.nodes) == 100_000


STEP = {
    "JobIDRaw": "77.batch", "JobID": "77.batch", "ElapsedRaw": "68", "TotalCPU": "00:00.007",
    "MaxRSS": "3088K", "TRESUsageInTot": "cpu=00:00:00,fs/disk=8046,mem=3088K",
    "TRESUsageOutTot": "fs/disk=0",
}  # fmt: skip
LINUX = (
    "JobAcctGatherFrequency  = task=30,energy=10\nJobAcctGatherType       = jobacct_gather/linux\n"
)


def job_with_steps(configuration, *changes, **job_changes):
    site = site_accounting("slurm 22.05.8", configuration)
    output = sacct_output(
        {"TotalCPU": "00:00.007"} | job_changes, *(STEP | each for each in changes)
    )
    (parsed,) = parse_jobs("c1", parse_rows(output, FIELDS, "\x1f!"), site)
    return parsed.job


@pytest.mark.parametrize("state", ["CANCELLED by 0", "TIMEOUT", "PREEMPTED", "DEADLINE"])
def test_cpu_time_is_a_lower_bound_where_processes_are_not_waited_for(state):
    job = job_with_steps(LINUX, {"State": "CANCELLED", "ExitCode": "0:15"}, State=state)
    assert (job.cpu_seconds, job.cpu_at_least) == (0.007, 2)
    assert job_with_steps(LINUX, {}).cpu_at_least == 1
    assert job_with_steps(LINUX, {"State": "CANCELLED"}).cpu_at_least == 2
    assert job.peak_memory_bytes == 3088 * 1024
    cgroup = LINUX.replace("/linux", "/cgroup")
    job = job_with_steps(cgroup, {"State": "CANCELLED", "ExitCode": "0:15"}, State=state)
    assert (job.cpu_seconds, job.cpu_at_least) == (0.007, 0)


@pytest.mark.parametrize("plugin", ["jobacct_gather/none", "(null)"])
def test_zero_cpu_time_that_nobody_gathered_is_not_known(plugin):
    not_gathered = f"JobAcctGatherType       = {plugin}\n"
    for steps in ((), ({"TotalCPU": "00:00:00", "MaxRSS": "", "TRESUsageInTot": ""},)):
        job = job_with_steps(not_gathered, *steps, TotalCPU="00:00:00")
        assert {each.cpu_seconds for each in (job, *job.steps)} == {None}


def test_running_steps_have_no_figures_yet():
    """Slurm prints 00:00:00 until a step has ended."""
    job = job_with_steps("", {"State": "RUNNING", "End": "Unknown", "TotalCPU": "00:00:00"},
                         State="RUNNING", End="Unknown", TotalCPU="00:00:00")  # fmt: skip
    (step,) = job.steps
    assert (job.cpu_seconds, step.cpu_seconds, step.exit_code, step.elapsed_seconds) == (None,) * 4


@pytest.mark.parametrize(
    ("row", "requested", "allocated"),
    [
        ({"ReqCPUS": "1", "ReqTRES": "cpu=1,node=1", "AllocTRES": "cpu=1,node=1"}, 1, 1),
        ({"ReqCPUS": "1", "ReqTRES": "cpu=1,node=1", "AllocTRES": "cpu=2,node=1"}, 1, 2),
    ],
    ids=["--overcommit -n8", "two threads per core"],
)
def test_cpus_are_those_that_slurm_gave(row, requested, allocated):
    (job, _) = parse_output(sacct_output(row, STEP | {"NTasks": "8"}))[0]
    assert (job.requested_cpus, job.allocated_cpus, job.steps[0].tasks) == (requested, allocated, 8)


def test_killed_extern_step_leaves_the_cpu_time_of_the_others():
    extern = {
        "JobIDRaw": "77.extern",
        "State": "CANCELLED",
        "ExitCode": "0:9",
        "MaxRSS": "",
        "TotalCPU": "00:00:00",
    }
    job = job_with_steps(LINUX, {}, extern)
    assert (job.cpu_seconds, job.peak_memory_bytes) == (0.007, 3088 * 1024)
    assert job.cpu_at_least == 1


def test_cpu_time_of_sessions_by_ssh_is_that_of_the_job():
    """pam_slurm_adopt; the step `extern` is part of Slurm's TotalCPU as well."""
    extern = {"JobIDRaw": "77.extern", "TotalCPU": "01:00.000"}
    assert job_with_steps(LINUX, {}, extern).cpu_seconds == 60.007


def test_zeros_of_a_site_that_gathers_nothing_are_no_figures():
    """jobacct_gather/none, as in Slurm 22.05."""
    nothing = {"TotalCPU": "00:00:00", "MaxRSS": "", "TRESUsageInTot": ""}
    job = job_with_steps("", nothing, {**nothing, "JobIDRaw": "77.extern"}, TotalCPU="00:00:00")
    assert (job.cpu_seconds, job.peak_memory_bytes) == (None, None)
    assert {step.cpu_seconds for step in job.steps} == {None}


@pytest.mark.parametrize(
    ("configuration", "elapsed", "memory"),
    [
        (LINUX, 29, None),
        (LINUX.replace("task=30,", ""), 29, None),  # the default is 30
        (LINUX, 30, 3088 * 1024),
        (LINUX.replace("task=30,energy=10", "energy=5,task=30"), 29, None),
        (LINUX.replace("task=30,energy=10", "10"), 29, 3088 * 1024),
        (LINUX.replace("task=30", "task=0"), 3000, None),
        (LINUX.replace("/linux", "/cgroup"), 3, 3088 * 1024),
        ("", 3, 3088 * 1024),
    ],
)
def test_sample_of_the_start_of_a_step_is_not_its_memory(configuration, elapsed, memory):
    job = job_with_steps(configuration, {"ElapsedRaw": str(elapsed)})
    (step,) = job.steps
    assert (step.memory_bytes, step.peak_task_memory_bytes, job.peak_memory_bytes) == (memory,) * 3
    assert step.read_bytes == (8046 if memory else None)


def test_step_that_was_never_sampled_has_no_memory_and_no_bytes():
    """With jobacct_gather/cgroup: 0 of everything."""
    usage = {"MaxRSS": "0", "TRESUsageInTot": "cpu=00:00:00,fs/disk=0,mem=0"}
    job = job_with_steps("", usage)
    (step,) = job.steps
    assert (step.memory_bytes, step.peak_task_memory_bytes, job.peak_memory_bytes) == (None,) * 3
    assert (step.read_bytes, step.written_bytes, step.cpu_seconds) == (None, None, 0.007)


def test_steps_of_a_node_that_failed_have_no_cpu_time():
    job = job_with_steps("", {"State": "CANCELLED", "ExitCode": ""}, State="NODE_FAIL")
    assert (job.cpu_seconds, job.steps[0].cpu_seconds) == (None, None)


def test_step_that_its_user_cancelled_before_the_node_failed_keeps_its_cpu_time():
    cancelled = {"State": "CANCELLED by 1001", "ExitCode": "0:15", "TotalCPU": "00:05.000"}
    job = job_with_steps("", cancelled, State="NODE_FAIL")
    assert job.steps[0].cpu_seconds == 5


def test_zero_of_a_job_without_steps_is_no_cpu_time():
    """As of the part after a resize: its steps belong to the part before it."""
    assert job_with_steps("", TotalCPU="00:00:00").cpu_seconds is None


def test_job_without_steps_has_the_cpu_time_of_its_own_row():
    assert job_with_steps("", TotalCPU="00:00.007").cpu_seconds == 0.007


@pytest.mark.parametrize("first", [0, 1])
def test_part_after_a_resize_begins_with_it(first):
    """Slurm 22.05 repeats the start and run time of the job; 20 s of suspension are left out."""
    rows = [
        {"State": "RESIZING", "End": "1775300160", "ElapsedRaw": "60"},
        {"Submit": "1775300160", "Eligible": "1775300160", "ElapsedRaw": "3880"},
    ]
    batch = collect_batch(parse_output(sacct_output(rows[first], rows[1 - first])))
    parts = sorted((job.start_time, job.end_time, job.elapsed_seconds) for job in batch.jobs)
    assert parts == [(1775300100, 1775300160, 60), (1775300160, 1775304000, 3820)]


@pytest.mark.parametrize("steps", [(), ({},)])
def test_clock_that_was_set_back_after_a_submission_is_not_a_resize(steps):
    """Accounting has no record that ended with a resize."""
    job = job_with_steps("", *steps, Submit="1775300160", Start="1775300000", ElapsedRaw="4000")
    (found,) = collect_batch([ParsedJob(job)]).jobs
    assert (found.start_time, found.elapsed_seconds) == (1775300000, 4000)


@given(text=st.text(max_size=300))
def test_any_configuration_is_read(text):
    site_accounting(text, text)


def test_middle_part_of_a_job_held_what_the_record_before_it_has():
    """26.05: the record that ends with a resize has what the job holds from then on."""
    part = {"State": "RESIZING", "AllocNodes": "2"}
    at = ["1775300000", "1775300100", "1775300200"]
    rows = (
        part | {"Submit": at[0], "Start": at[0], "End": at[1], "AllocTRES": "cpu=6,node=3"},
        STEP | {"JobIDRaw": "77.extern", "JobID": "77.extern", "AllocTRES": "cpu=8,node=4"},
        part | {"Submit": at[1], "Start": at[1], "End": at[2], "AllocTRES": "cpu=4,node=2"},
        {"Submit": at[2], "Start": at[2], "AllocTRES": "cpu=4,node=2"},
    )
    parsed = parse_output(sacct_output(*rows))
    assert [each.job.allocated_cpus for each in parsed] == [8, 6, 4]
    assert [each.job.state.value for each in parsed] == ["RESIZED", "RESIZED", "COMPLETED"]
    alone = parse_output(sacct_output(*rows[2:]))
    assert [each.job.allocated_cpus for each in alone] == [None, 4]  # as of 22.05, or 26.05
