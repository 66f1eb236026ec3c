"""One sentence says why a job waits, or how it ended."""

import pytest

from batchjob_stats_server.report.headline import headline
from tests.batchjob_stats_server.report.test_report import GIB, T, material

WAITING = {"state": "PENDING", "start_time": None, "end_time": None, "exit_code": None}


def headline_of(usual_wait=None, steps=(), **changed):
    return headline(material(**changed)._replace(usual_wait=usual_wait, steps=steps))


def test_pending_job_shows_reason_wait_and_usual_wait():
    text = headline_of(
        **WAITING, reason="Priority", priority=1200, partition="gpu",
        usual_wait={"wait_p50_seconds": 29.0, "wait_p90_seconds": 16_920.0},
        submit_time=T + 8000 - 3720,
    )  # fmt: skip
    assert text == (
        "Waiting for 1 h 2 min: jobs with a higher priority are ahead of it (Priority)."
        " Its priority is 1200."
        " Of the jobs in gpu, half start within 29 s; one in ten waits over 4 h 42 min."
    )


@pytest.mark.parametrize(
    ("half", "most", "words"),
    [(0.0, 0.0, "nine in ten start at once"), (0.0, 60.0, "half start at once; one in ten waits")],
)
def test_pending_job_in_a_partition_that_is_mostly_free(half, most, words):
    usual_wait = {"wait_p50_seconds": half, "wait_p90_seconds": most}
    assert words in headline_of(**WAITING, reason="Priority", usual_wait=usual_wait)


def test_pending_job_shows_expected_start():
    now = T + 8000
    text = headline_of(**WAITING, reason="Resources", expected_start_time=now + 7200.0)
    assert "The scheduler expects to start it in 2 h." in text
    assert "expects" not in headline_of(
        **WAITING, reason="Resources", expected_start_time=now - 60.0
    )


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        ("sacct", "QOSMaxGRESPerUser", "its user has reached the limit of GPUs"),
        ("sacct", "ReqNodeNotAvail, UnavailableNodes:n[1-2]", "(UnavailableNodes:n[1-2])"),
        ("qstat", "Not Running: Insufficient amount of resource: ncpus (R: 9 A: 2 T: 8)",
         "not enough free ncpus"),
        ("bjobs", "Job dependency condition not satisfied;", "waits for jobs"),
        ("bjobs", "The moon is in the wrong house;", "LSF says “The moon is in the wrong house”"),
        ("sacct", "SomethingNew", ": SomethingNew"),
        ("sacct", "None", "the scheduler gives no reason"),
    ],
)  # fmt: skip
def test_pending_reason_is_explained(source, reason, words):
    assert words in headline_of(**WAITING, source=source, reason=reason)


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [
        (126, None, "could not be executed"),
        (127, None, "a command was not found"),
        (134, None, "signal 6 (SIGABRT): the program aborted itself"),
        (137, None, "signal 9 (SIGKILL): it was killed."),
        (139, None, "signal 11 (SIGSEGV): a segmentation fault"),
        (143, None, "signal 15 (SIGTERM)"),
        (3, None, "exit code 3: set by the program"),
        (0, 11, "Failed with signal 11 (SIGSEGV): a segmentation fault"),
        (200, None, "exit code 200: set by the program"),
        (255, None, "exit code 255: the program returned -1"),
        (None, None, "the scheduler gives no exit code"),
    ],
)
def test_exit_code_is_explained(code, signal, words):
    assert words in headline_of(state="FAILED", exit_code=code, exit_signal=signal)


def test_job_that_slurm_could_not_start_was_ended_by_no_signal():
    """Seen with 22.05: 0:53, and the reason None, where the folder of the output is missing."""
    text = headline_of(state="FAILED", source="sacct", exit_code=0, exit_signal=53, reason="None")
    assert "the folder of the job's output does not exist" in text
    assert "signal 53" not in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"usage_oom_kills": 1}, "it was killed, most likely because it ran out of memory."),
        ({}, "(SIGKILL): it was killed."),  # full of page cache
        ({"usage_working_set_average_bytes": 16 * GIB}, "most likely because"),
        ({"usage_memory_peak_bytes": None, "peak_memory_bytes": 16 * GIB}, "and users do."),
        ({"usage_memory_peak_bytes": None}, "and users do."),
        ({"usage_memory_peak_bytes": None, "peak_memory_bytes": GIB}, "it was killed."),
    ],
)
def test_killed_job_ran_out_of_memory_only_if_its_memory_was_short(changed, words):
    full = {
        "state": "FAILED", "exit_code": 137, "allocated_memory_bytes": 16 * GIB,
        "usage_memory_peak_bytes": 16 * GIB, "usage_memory_limit_hits": 100,
        "usage_memory_waiting_seconds": None, "usage_working_set_average_bytes": None,
        "usage_oom_kills": 0, "peak_memory_bytes": None,
    }  # fmt: skip
    assert words in headline_of(**{**full, **changed})


@pytest.mark.parametrize("code", [1, 126, 127, 9, 11])
def test_code_that_may_be_one_of_two_is_not_explained(code):
    text = headline_of(state="FAILED", exit_code=None, exit_code_or_128_more=code)
    assert text == (
        f"Failed with exit code {code} or {code + 128}; Slurm's accounting does not tell which of "
        "them."
    )


def test_error_reported_by_the_job_replaces_exit_code_explanation():
    text = headline_of(state="FAILED", exit_code=125, error="--cpus: no cgroup can be made.")
    assert text == "Failed with exit code 125: --cpus: no cgroup can be made."
    assert headline_of(state="FAILED", exit_code=None, error="no mesh") == "Failed: no mesh."
    assert len(headline_of(state="FAILED", exit_code=1, error="no such file " * 1000)) < 300


STEP = {"step": "0", "state": "COMPLETED", "nodes": 1, "node_list": "n2", "exit_signal": 0,
        "memory_bytes": None, "submit_line": ""}  # fmt: skip
BATCH = {**STEP, "step": "batch", "node_list": "n1"}
OOM = {**STEP, "state": "OUT_OF_MEMORY", "exit_signal": 125, "memory_bytes": 99_229_696}


def test_out_of_memory_names_step_and_node():
    steps = [BATCH, {**OOM, "memory_bytes": None}]
    text = headline_of(state="OUT_OF_MEMORY", steps=steps, allocated_memory_bytes=16 * GIB)
    assert text == "Out of memory in step 0 on n2: the kernel killed a process. The job had 16 GiB."
    assert "out of memory in step 0 on n2" in headline_of(state="COMPLETED", steps=steps)


def test_failure_because_a_step_ran_out_of_memory_names_its_limit_and_peak():
    job = {"state": "FAILED", "exit_code": 1, "derived_exit_signal": 125, "reason": "Priority",
           "allocated_memory_bytes": 200 << 20}  # fmt: skip
    assert headline_of(steps=[BATCH, OOM], **job) == (
        "Failed: out of memory in step 0 on n2: the kernel killed a process."
        " The job had 200 MiB, and the step's peak was 94.6 MiB."
    )
    limited = {**OOM, "submit_line": "srun --overlap --mem=100M python3 x.py --mem 3G"}
    assert headline_of(steps=[BATCH, limited], **job) == (
        "Failed: out of memory in step 0 on n2: the kernel killed a process."
        " The step had 100 MiB, and its peak was 94.6 MiB."
    )
    assert headline_of(**job).startswith("Failed: out of memory in a step")


@pytest.mark.parametrize(
    ("submit_line", "had"),
    [
        ("srun python3 x.py --mem 3G --epochs 2", "The job had 200 MiB"),
        ("srun ./a", "The job had 200 MiB"),
        ("srun --mem=0 ./a", "The job had 200 MiB"),
        ("srun -n 2 --mem 50M -l ./a --mem 3G", "The step had 50 MiB"),
        ("srun -ln2 --label --cpu-bind none --mem=50m -- ./a", "The step had 50 MiB"),
        ("/usr/bin/srun --mem-per-cpu=50M -n2 ./a", "The step had 100 MiB"),
        ("srun --mem-per-gpu=50M ./a", ""),  # its GPUs are not known
    ],
)
def test_limit_of_a_step_is_what_srun_was_asked_for(submit_line, had):
    steps = [{**OOM, "submit_line": submit_line, "cpus": 2, "gpus": None}]
    text = headline_of(state="OUT_OF_MEMORY", steps=steps, allocated_memory_bytes=200 << 20)
    assert f"the kernel killed a process. {had}".strip() in text
    assert ("had" in text) == bool(had)


@pytest.mark.parametrize(
    ("code", "derived", "step", "text"),
    [
        (139, 0, 11, "Failed with signal 11 (SIGSEGV): a segmentation fault"),
        (1, 11, 0, "A step was ended by signal 11 (SIGSEGV): a segmentation fault"),
        (9, 0, 9, "exit code 9: set by the program; see its output. A step was ended by signal 9"),
        (7, 0, 15, "Failed with exit code 7: set by the program; see its output."),
        (None, 9, 9, "Failed: a step ended with signal 9 (SIGKILL)"),
    ],
)
def test_signals_of_steps_explain_exit_codes(code, derived, step, text):
    steps = [BATCH, {**STEP, "exit_signal": step}]
    found = headline_of(state="FAILED", exit_code=code, derived_exit_signal=derived, steps=steps)
    assert text in found


def test_signal_that_a_shell_in_a_step_turned_into_its_code_explains_the_end():
    """`srun sh -c ./crash`, and a script that goes on and fails."""
    text = headline_of(state="FAILED", exit_code=1, derived_exit_code=139)
    assert text.startswith("Failed with exit code 1")
    assert "A step was ended by signal 11 (SIGSEGV)" in text
    assert "A step" not in headline_of(state="FAILED", exit_code=1, derived_exit_code=143)


def test_code_that_may_be_128_more_is_the_signal_that_ended_a_step():
    """22.05: srun of a crash exits with 139, and sacct takes 128 off."""
    text = headline_of(state="FAILED", exit_code=None, exit_code_or_128_more=11,
                       derived_exit_signal=11)  # fmt: skip
    assert text.startswith("Failed with signal 11 (SIGSEGV): a segmentation fault")


@pytest.mark.parametrize(
    ("facts", "says_memory"),
    [
        ({"usage_memory_peak_bytes": 1.5 * 2**20, "usage_oom_kills": 0}, False),
        ({"usage_memory_peak_bytes": 15.9 * GIB}, True),
        ({"usage_oom_kills": 1}, True),
        ({"usage_memory_peak_bytes": None, "usage_memory_peak_node_bytes": None}, True),
    ],
)
def test_a_kill_is_laid_to_memory_only_where_memory_was_short_or_is_not_known(facts, says_memory):
    for killed in ({"exit_code": 0, "exit_signal": 9}, {"exit_code": 137, "exit_signal": 0}):
        text = headline_of(state="FAILED", **killed, **facts)
        assert "signal 9 (SIGKILL): it was killed" in text
        assert ("memory" in text) == says_memory


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "BOOT_FAIL"])
def test_failure_outside_the_job_is_not_blamed_on_it(state):
    assert "This is not a fault of the job" in headline_of(state=state)


def test_cancelled_job_names_who_cancelled_it():
    assert headline_of(state="CANCELLED", cancelled_by="alice") == "Cancelled by its owner."
    assert headline_of(state="CANCELLED", cancelled_by="0", start_time=None) == (
        "Cancelled by root or an administrator (uid 0) before it started."
    )
    assert headline_of(state="CANCELLED") == "Cancelled."


def test_timeout_names_the_time_limit():
    assert headline_of(state="TIMEOUT", reason="TimeLimit") == (
        "It reached its time limit of 2 h 30 min and was terminated."
    )


def test_running_and_completed_jobs_have_no_headline():
    assert headline_of() == headline_of(state="RUNNING", end_time=None) == ""


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("FAILED", "Priority", ""),  # Slurm keeps it after the start
        ("FAILED", "JobArrayTaskLimit", ""),
        ("FAILED", "JobLaunchFailure", "could not be launched"),
        ("FAILED", "NonZeroExitCode", ""),  # the exit code says so
        ("FAILED", "None", ""),
        ("CANCELLED", "BeginTime", ""),
        ("FAILED", "DependencyNeverSatisfied", ""),
        ("FAILED", "InvalidAccount", ""),
        ("FAILED", "launch failed requeued held", ""),
        ("TIMEOUT", "ReqNodeNotAvail, UnavailableNodes:n1", ""),
        ("NODE_FAIL", "Resources", ""),
    ],
)
def test_only_a_reason_of_ends_explains_an_end(state, reason, words):
    text = headline_of(state=state, reason=reason, exit_code=7)
    assert words in text
    assert ("The scheduler says" in text) == bool(words)


def test_what_kept_a_job_from_starting_explains_its_end():
    text = headline_of(state="CANCELLED", reason="DependencyNeverSatisfied", start_time=None)
    assert "The scheduler says: a job that it depends on ended in a way" in text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("JobHeldUser", "Submitted 1 h 2 min ago, and not ready to start: it is held by its owner"),
        ("JobArrayTaskLimit", "and not ready to start: its array has reached its limit of running"),
        ("Priority", "Waiting for 1 h 2 min: jobs with a higher priority"),
    ],
)
def test_a_held_or_throttled_job_is_not_said_to_wait(reason, text):
    assert text in headline_of(**WAITING, reason=reason, submit_time=T + 8000 - 3720)


def test_job_that_its_state_says_is_held_is_not_said_to_wait():
    text = headline_of(**WAITING, state_word="REQUEUE_HOLD", source="sacct", reason="None")
    assert "not ready to start" in text
