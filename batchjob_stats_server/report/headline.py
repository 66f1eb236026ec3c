"""Why a job waits, or how it ended: a sentence or two at the top of its page or report.

Exit codes: POSIX shells return 126 and 127 for commands that cannot be run or found, and 128 + n
for one that signal n ended.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten

from batchjob.judgements import thresholds
from batchjob.runtime.formatting import format_count, format_duration, format_exit_code, size
from batchjob.runtime.values import size_bytes
from batchjob.schedulers import registry
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import ReportInput, Row

_MAX_ERROR_LENGTH = 200  # characters; the page has the full text further below
_NOT_A_JOB_FAULT = "This is not a fault of the job"
_OUT_OF_MEMORY = 125  # the signal by which Slurm says that a step ran out of memory
_NOT_LAUNCHED = 53  # and this one that it could not start the script (seen with 22.05)
_MEMORY_OPTIONS = {"mem": "nodes", "mem-per-cpu": "cpus", "mem-per-gpu": "gpus"}
_EXIT_CODES = {
    126: "its command was found but could not be executed: it is not executable, or not a program "
    "for this machine",
    127: "a command was not found: it is misspelled, or its module is not loaded",
    255: "the program returned -1, as ssh does when its connection fails, and programs of MPI "
    "after an error; see its output",
}
_SIGNALS = {
    signal.SIGHUP: "its terminal or session ended",
    signal.SIGINT: "it was interrupted",
    signal.SIGQUIT: "it was asked to quit",
    signal.SIGILL: "it executed an instruction that this CPU does not have; it may have been "
    "compiled for another one",
    signal.SIGABRT: "the program aborted itself: a failed check, or an error that it did not "
    "handle",
    signal.SIGBUS: "it accessed memory that is not there; a mapped file may have been cut, or "
    "/dev/shm or a disk may be full",
    signal.SIGFPE: "an invalid calculation, such as a division of integers by zero",
    signal.SIGKILL: "it was killed",
    signal.SIGSEGV: "a segmentation fault: the program accessed memory that is not its own",
    signal.SIGPIPE: "it wrote to a program that had already ended",
    signal.SIGTERM: "it was asked to terminate, for example by a cancellation or at a time limit",
    signal.SIGXCPU: "it used more CPU time than its limit (ulimit -t)",
    signal.SIGXFSZ: "it wrote a file larger than its limit (ulimit -f)",
}


def headline(inputs: ReportInput) -> str:
    """A sentence or two about a job that waits, is suspended, or did not end well, else ""."""
    state = JobState(inputs.job["state"])
    explain_state = _EXPLANATIONS.get(state)
    text = " ".join(explain_state(inputs).split()) if explain_state else ""
    if inputs.job["as_of_basis"] == "nodes":
        text = f"{text} All its nodes have seen it end; its state is not yet known.".lstrip()
    elif as_of := explain.as_of(inputs.job):
        text = f"{text} This is {as_of}: the scheduler cannot be read since then.".lstrip()
    return text


def _waiting(inputs: ReportInput) -> str:
    job = inputs.job
    waited = explain.waiting_seconds(job, inputs.now)
    reason = job["reason"] or ""
    reason_text = explain_reason(job["source"], reason)
    reason_name = f" ({reason})" if reason_text and reason.isidentifier() else ""
    since = format_duration(max(0, inputs.now - job["submit_time"]))
    start = (
        f"Submitted {since} ago, and not ready to start" if waited is None
        else f"Waiting for {format_duration(waited)}" if waited else "Waiting"
    )  # fmt: skip
    parts = [
        start
        + (f": {reason_text}{reason_name}." if reason_text else "; the scheduler gives no reason.")
    ]
    if job["dependencies"]:
        parts.append(f"It depends on {job['dependencies']}.")
    if job["priority"] is not None and "priority" in reason.lower():
        parts.append(f"Its priority is {job['priority']}.")
    if (expected := job["expected_start_time"]) and expected > inputs.now:
        parts.append(
            f"The scheduler expects to start it in {format_duration(expected - inputs.now)}."
        )
    if inputs.usual_wait is not None:
        where = f" in {job['partition']}" if job["partition"] else ""
        parts.append(f"Of the jobs{where}, {explain.usual_wait(inputs.usual_wait)}.")
    return " ".join(parts)


def explain_reason(source: str, reason: str) -> str:
    """A scheduler's reason in words, without a full stop; unknown reasons are unchanged."""
    if not reason or reason == "None":
        return ""
    return registry.explain_reason(source, reason) or reason


def _failed(inputs: ReportInput) -> str:
    job = inputs.job
    oom_steps = _oom_steps(inputs)
    if oom_steps or job["derived_exit_signal"] == _OUT_OF_MEMORY:
        step = "" if oom_steps else " in a step"
        return f"Failed: out of memory{step}{_location(job, oom_steps)}: " + _memory(job, oom_steps)
    error = shorten(job["error"].rstrip("."), _MAX_ERROR_LENGTH, placeholder=" ...")
    code, number, of_step = job["exit_code"], job["exit_signal"], _signal_of_steps(inputs)
    either = job["exit_code_or_128_more"]
    if of_step and of_step in (either, (code or 0) - 128):  # srun's exit code
        number = of_step
    exit_text = _describe_exit(code, number, error, either)
    if exit_text:
        also = (
            f" A step was ended by signal {_describe_signal(of_step)}."
            if of_step and of_step != number
            else ""
        )
        text = f"Failed with {exit_text}{_why_killed(inputs, code, number)}.{also}"
    elif step_exit := _describe_exit(job["derived_exit_code"], of_step):
        text = f"Failed: a step ended with {step_exit}."
    else:
        text = f"Failed: {error}." if error else "Failed; the scheduler gives no exit code."
    return text + _reason_sentence(job)


def ending_signal(inputs: ReportInput) -> int:
    """The signal that ended a job, also as the exit code of its shell, or a step of it; 0: none."""
    job = inputs.job
    by_shell = (job["exit_code"] or 0) - 128
    number = job["exit_signal"] or (by_shell if by_shell in _SIGNAL_NUMBERS else None)
    return int(number or _signal_of_steps(inputs) or 0)


def _signal_of_steps(inputs: ReportInput) -> int | None:
    """The signal that ended a step, which its script may have turned into an exit code.

    Slurm ends what is left of a job by SIGTERM, whatever the job's own end was.
    """
    job = inputs.job
    numbers = [job["derived_exit_signal"], *(step["exit_signal"] for step in inputs.steps)]
    if (by_shell := (job["derived_exit_code"] or 0) - 128) in _SIGNAL_NUMBERS:
        numbers.append(by_shell)
    return next((each for each in numbers if each and each != signal.SIGTERM), None)


def _why_killed(inputs: ReportInput, code: int | None, number: int | None) -> str:
    """What is known about memory if SIGKILL ended the job."""
    if signal.SIGKILL not in (number, (code or 0) - 128):
        return ""
    is_short, ratio = inputs.job["memory_short"], inputs.job["memory_efficiency"]
    if is_short:
        return ", most likely because it ran out of memory"
    if is_short is None and (ratio is None or ratio >= thresholds().near_limit):
        return ", as the kernel does when memory runs out, and users do"
    return ""  # its memory was not short, though it may have been full of page cache


def _describe_exit(
    code: int | None, number: int | None, error: str = "", either: int | None = None
) -> str:
    """`exit code 127: a command was not found ...`; "" if neither code nor signal is known.

    `error` is the job's own message, and replaces the usual meaning of its code. Without a code,
    `either` may be it, or 128 more: that has no meaning, since 127 may be 255.
    """
    if number == _NOT_LAUNCHED and not code:
        return (
            f"{number} in place of a signal: Slurm could not start the script, most often because "
            "the folder of the job's output does not exist or cannot be written"
        )
    if number:
        return f"signal {_describe_signal(number)}"
    if code is None and either is not None:
        codes = format_exit_code(code, either)
        return f"exit code {codes}; Slurm's accounting does not tell which of them"
    if not code:
        return ""
    if 128 < code <= 128 + 64 and code - 128 in _SIGNAL_NUMBERS:
        return f"exit code {code}, that is, signal {_describe_signal(code - 128)}"
    meaning = error or _EXIT_CODES.get(code, "set by the program; see its output")
    return f"exit code {code}: {meaning}"


_SIGNAL_NUMBERS = {int(each) for each in signal.Signals}


def _describe_signal(number: int) -> str:
    if number not in _SIGNAL_NUMBERS:
        return str(number)
    known = signal.Signals(number)
    meaning = _SIGNALS.get(known)
    return f"{number} ({known.name}){f': {meaning}' if meaning else ''}"


def _reason_sentence(job: Row) -> str:
    """The scheduler's reason of the end, unless the exit code says the same."""
    reason = job["reason"] or ""
    if reason in ("NonZeroExitCode", "RaisedSignal") or not _explains_end(job, reason):
        return ""
    return f" The scheduler says: {explain_reason(job['source'], reason)}."


def _explains_end(job: Row, reason: str) -> bool:
    has_started = job["start_time"] is not None
    return registry.explains_end(job["source"], reason, has_started=has_started)


def _out_of_memory(inputs: ReportInput) -> str:
    job, steps = inputs.job, _oom_steps(inputs)
    return f"Out of memory{_location(job, steps)}: {_memory(job, steps)}"


def _oom_steps(inputs: ReportInput) -> Sequence[Row]:
    return [each for each in inputs.steps if each["state"] == JobState.OUT_OF_MEMORY]


def _memory(job: Row, steps: Sequence[Row]) -> str:
    """`the kernel killed a process. The step had 80 MiB, and its peak was 79.6 MiB.`"""
    step = steps[0] if len(steps) == 1 else None
    own = _requested_memory(job["source"], step) if step else None
    owner, limit, nodes = "The job", job["allocated_memory_bytes"], job["allocated_nodes"]
    if step and own is not None:
        owner, limit, nodes = "The step", own, step["nodes"]
    if not limit:
        return "the kernel killed a process."
    on = f" on {format_count(nodes, 'node')}" if nodes and nodes > 1 else ""
    peak = step["memory_bytes"] if step else None
    whose = "its" if own else "the step's"
    reached = f", and {whose} peak was {size(peak)}" if peak else ""
    return f"the kernel killed a process. {owner} had {size(limit)}{on}{reached}."


def _requested_memory(source: str, step: Row) -> int | None:
    """Memory on all its nodes that the step asked for, 0 if that is not known.

    None if it has that of its job.
    """
    submission = registry.submission_of(source)
    options = submission.known(step["submit_line"]) if submission else {}
    option = next((name for name in _MEMORY_OPTIONS if name in options), None)
    if option is None:
        return None
    value = options[option]
    try:
        amount = size_bytes(value, "M")
    except ValueError:
        return 0
    if amount == 0:  # all that its job has
        return None
    count = step[_MEMORY_OPTIONS[option]]
    return amount * (count or (1 if option == "mem" else 0))


def _location(job: Row, steps: Sequence[Row]) -> str:
    """` in step 0 on n1`, as far as these are known."""
    step = f" in step {steps[0]['step']}" if len(steps) == 1 else ""
    nodes = steps[0]["nodes"] if len(steps) == 1 else job["allocated_nodes"]
    names = (steps[0]["node_list"] if len(steps) == 1 else "") or job["node_list"]
    return f"{step} on {names}" if nodes == 1 and names else step


def _timeout(inputs: ReportInput) -> str:
    job = inputs.job
    limit = job["time_limit_seconds"]
    which = f"its time limit of {format_duration(limit)}" if limit else "a time limit"
    reason = job["reason"] or ""
    is_told = reason != "TimeLimit" and _explains_end(job, reason)
    reason_text = f" ({explain_reason(job['source'], reason)})" if is_told else ""
    return f"It reached {which} and was terminated{reason_text}."


def _node_fail(inputs: ReportInput) -> str:
    nodes = f" of {inputs.job['node_list']}" if inputs.job["node_list"] else ""
    return f"A node{nodes} failed while it ran. {_NOT_A_JOB_FAULT}; submit it again."


def _cancelled(inputs: ReportInput) -> str:
    job = inputs.job
    by = job["cancelled_by"]
    if by in (job["username"], str(job["uid"])):
        who = "its owner"
    elif by in ("0", "root"):
        who = "root or an administrator (uid 0)"
    else:
        who = f"uid {by}" if by.isdigit() else by
    by_whom = f" by {who}" if by else ""
    when = "" if job["start_time"] is not None else " before it started"
    return f"Cancelled{by_whom}{when}.{_reason_sentence(job)}"


def _completed(inputs: ReportInput) -> str:
    """Only that a step ran out of memory; else nothing."""
    if not (oom_steps := _oom_steps(inputs)):
        return ""
    where = _location(inputs.job, oom_steps)
    return f"Completed, but out of memory{where}; its results may not be complete."


def _constant(text: str) -> Callable[[ReportInput], str]:
    return lambda inputs: text + _reason_sentence(inputs.job)


_EXPLANATIONS: Mapping[JobState, Callable[[ReportInput], str]] = {
    JobState.PENDING: _waiting,
    JobState.COMPLETED: _completed,
    JobState.FAILED: _failed,
    JobState.OUT_OF_MEMORY: _out_of_memory,
    JobState.TIMEOUT: _timeout,
    JobState.NODE_FAIL: _node_fail,
    JobState.CANCELLED: _cancelled,
    JobState.BOOT_FAIL: _constant(f"Its nodes did not boot. {_NOT_A_JOB_FAULT}; submit it again."),
    JobState.PREEMPTED: _constant(
        f"A job with a higher priority preempted it. {_NOT_A_JOB_FAULT}."
    ),
    JobState.DEADLINE: _constant(
        "It was terminated because it could not finish before its deadline."
    ),
    JobState.REQUEUED: _constant("This run ended and the job was requeued."),
    JobState.MOVED: _constant("It was moved to another cluster, which has its records."),
    JobState.SUSPENDED: _constant("It is suspended and keeps its memory."),
    JobState.VANISHED: _constant("Its scheduler no longer knows it, and its end was not recorded."),
}
