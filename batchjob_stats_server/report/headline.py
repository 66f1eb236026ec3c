"""Why a job waits, or how it ended: a sentence or two at the top of its page or report.

Exit codes: POSIX shells return 126 and 127 for commands that cannot be run or found, and 128 + n
for one that signal n ended.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten

from batchjob.runtime.formatting import lasting, number_of, size
from batchjob.schedulers import registry
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import ReportInput, Row

_LONGEST_ERROR = 200  # characters; the page has the full text further below
_NOT_YOURS = "This is not a fault of the job"
_CODES = {
    126: "its command was found but could not be executed: it is not executable, or not a program "
    "for this machine",
    127: "a command was not found: it is misspelled, or its module is not loaded",
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
    signal.SIGKILL: "it was killed, often because it ran out of memory",
    signal.SIGSEGV: "a segmentation fault: the program accessed memory that is not its own",
    signal.SIGPIPE: "it wrote to a program that had already ended",
    signal.SIGTERM: "it was asked to terminate, for example by a cancellation or at a time limit",
    signal.SIGXCPU: "it used more CPU time than its limit (ulimit -t)",
    signal.SIGXFSZ: "it wrote a file larger than its limit (ulimit -f)",
}


def headline(material: ReportInput) -> str:
    """For a job that waits, is suspended, or did not end well; otherwise ""."""
    state = JobState(material.job["state"])
    make = _ENDS.get(state)
    said = _waiting(material) if state is JobState.PENDING else make(material) if make else ""
    return " ".join(said.split())


def _waiting(material: ReportInput) -> str:
    job = material.job
    waited = explain.waiting(job, material.now)
    reason = job["reason"] or ""
    why = explained(job["source"], reason)
    named = f" ({reason})" if why and reason.isidentifier() else ""
    parts = [
        (f"Waiting for {lasting(waited)}" if waited else "Waiting")
        + (f": {why}{named}." if why else "; the scheduler gives no reason.")
    ]
    if job["dependencies"]:
        parts.append(f"It depends on {job['dependencies']}.")
    if job["priority"] is not None and "priority" in reason.lower():
        parts.append(f"Its priority is {job['priority']}.")
    if (expected := job["expected_start_time"]) and expected > material.now:
        parts.append(f"The scheduler expects to start it in {lasting(expected - material.now)}.")
    if material.usual_wait is not None:
        where = f" in {job['partition']}" if job["partition"] else ""
        usual = lasting(material.usual_wait) if material.usual_wait else "less than a second"
        parts.append(f"Jobs{where} usually wait {usual} (median of the last 30 days).")
    return " ".join(parts)


def explained(source: str, reason: str) -> str:
    """A scheduler's reason in words, without a full stop; an unknown reason as it is."""
    if not reason or reason == "None":
        return ""
    return registry.explained(source, reason) or reason


def _failed(material: ReportInput) -> str:
    job = material.job
    error = shorten(job["error"].rstrip("."), _LONGEST_ERROR, placeholder=" ...")
    said = _how(job["exit_code"], job["exit_signal"], error)
    if not said and job["derived_exit_code"]:
        return f"Failed: a step ended with {_how(job['derived_exit_code'], None)}.{_reason(job)}"
    if said:
        return f"Failed with {said}.{_reason(job)}"
    if error:
        return f"Failed: {error}.{_reason(job)}"
    return f"Failed; the scheduler gives no exit code.{_reason(job)}"


def _how(code: int | None, number: int | None, error: str = "") -> str:
    """`exit code 127: a command was not found ...`; "" if neither is known.

    `error` is the job's own message, and replaces the usual meaning of its code.
    """
    if number:
        return f"signal {_named(number)}"
    if not code:
        return ""
    if 128 < code <= 128 + 64 and code - 128 in _NUMBERS:
        return f"exit code {code}, that is, signal {_named(code - 128)}"
    meaning = error or _CODES.get(code, "set by the program; see its output")
    return f"exit code {code}: {meaning}"


_NUMBERS = {int(each) for each in signal.Signals}


def _named(number: int) -> str:
    if number not in _NUMBERS:
        return str(number)
    known = signal.Signals(number)
    meaning = _SIGNALS.get(known)
    return f"{number} ({known.name}){f': {meaning}' if meaning else ''}"


def _reason(job: Row) -> str:
    """The scheduler's reason, unless the exit code says the same."""
    reason = job["reason"] or ""
    if reason in ("", "None", "NonZeroExitCode", "RaisedSignal"):
        return ""
    return f" The scheduler says: {explained(job['source'], reason)}."


def _out_of_memory(material: ReportInput) -> str:
    job = material.job
    steps = [each for each in material.steps if each["state"] == JobState.OUT_OF_MEMORY]
    where = _places(job, steps)
    limit = job["allocated_memory_bytes"]
    had = f" It had {size(limit)}" if limit else ""
    nodes = job["allocated_nodes"]
    on = f" on {number_of(nodes, 'node')}" if had and nodes and nodes > 1 else ""
    return f"Out of memory{where}: the kernel killed a process.{had}{on}{'.' if had else ''}"


def _places(job: Row, steps: Sequence[Row]) -> str:
    """` in step 0 on n1`, as far as it is known."""
    step = f" in step {steps[0]['step']}" if len(steps) == 1 else ""
    nodes = steps[0]["nodes"] if len(steps) == 1 else job["allocated_nodes"]
    names = (steps[0]["node_list"] if len(steps) == 1 else "") or job["node_list"]
    return f"{step} on {names}" if nodes == 1 and names else step


def _timeout(material: ReportInput) -> str:
    job = material.job
    limit = job["time_limit_seconds"]
    said = f"It reached its time limit of {lasting(limit)}" if limit else "It reached a time limit"
    reason = job["reason"] or ""
    word = "" if reason in ("", "None", "TimeLimit") else f" ({explained(job['source'], reason)})"
    return f"{said} and was terminated{word}."


def _node_fail(material: ReportInput) -> str:
    job = material.job
    nodes = f" of {job['node_list']}" if job["node_list"] else ""
    return f"A node{nodes} failed while it ran. {_NOT_YOURS}; submit it again."


def _cancelled(material: ReportInput) -> str:
    job = material.job
    by = job["cancelled_by"]
    own = by in (job["username"], str(job["uid"]))
    who = " by its owner" if by and own else f" by {_person(by)}" if by else ""
    when = "" if job["start_time"] is not None else " before it started"
    return f"Cancelled{who}{when}.{_reason(job)}"


def _person(by: str) -> str:
    return "root or an administrator (uid 0)" if by == "0" else f"uid {by}" if by.isdigit() else by


def _completed(material: ReportInput) -> str:
    """Most need no explanation, except for a step killed for its memory, or a bad script."""
    broken = [each for each in material.steps if each["state"] == JobState.OUT_OF_MEMORY]
    if broken:
        return (
            f"Completed, but out of memory{_places(material.job, broken)}; its results may not be "
            "complete."
        )
    return ""


def _fixed(text: str) -> Callable[[ReportInput], str]:
    return lambda material: text + _reason(material.job)


_ENDS: Mapping[JobState, Callable[[ReportInput], str]] = {
    JobState.COMPLETED: _completed,
    JobState.FAILED: _failed,
    JobState.OUT_OF_MEMORY: _out_of_memory,
    JobState.TIMEOUT: _timeout,
    JobState.NODE_FAIL: _node_fail,
    JobState.CANCELLED: _cancelled,
    JobState.BOOT_FAIL: _fixed(f"Its nodes did not boot. {_NOT_YOURS}; submit it again."),
    JobState.PREEMPTED: _fixed(f"A job with a higher priority preempted it. {_NOT_YOURS}."),
    JobState.DEADLINE: _fixed("It was terminated because it could not finish before its deadline."),
    JobState.REQUEUED: _fixed("This run ended and the job was requeued."),
    JobState.MOVED: _fixed("It was moved to another cluster, which has its records."),
    JobState.SUSPENDED: _fixed("It is suspended and keeps its memory."),
    JobState.VANISHED: _fixed("Its scheduler no longer knows it, and its end was not recorded."),
}
