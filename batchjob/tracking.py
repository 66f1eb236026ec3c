"""Follow a piece of work of a program, and put it on record beside the other jobs.

    from batchjob import track

    with track("resize", tool="pillow", parameters={"width": 800}) as work:
        ...
        if not well:
            work.fail("3 of 40 images are broken")

    @track(tool="blast", parameters={"database": "nt"})
    async def search(sequence): ...

It never changes what the work does: exceptions go through, and what cannot be recorded is said
once, as a warning, and not raised.
"""

import functools
import inspect
import json
import logging
import os
import shlex
import sys
import time
import traceback
import types
import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast, overload

from batchjob.data import RUNS, data_directory, prepare
from batchjob.keep import Keep, sweep_daily
from batchjob.login import login
from batchjob.own_usage import OwnUsage, thread_cpu
from batchjob.runs import Run, Supervisor, this_process, write
from batchjob.states import JobState

log = logging.getLogger("batchjob.track")

P = ParamSpec("P")
R = TypeVar("R")

_USAGE = OwnUsage()  # a process has one memory and one CPU account, however often this is imported
_LONGEST = 10_000  # characters of an error's text and of parameters
_SHORT = 200  # of one value, where all together are too long

_STATES = {
    "success": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "error": JobState.FAILED,
    "timeout": JobState.TIMEOUT,
    "cancelled": JobState.CANCELLED,
    "retry": JobState.REQUEUED,
}
_LEVELS = {
    "success": logging.INFO, "cancelled": logging.INFO, "retry": logging.WARNING,
    "timeout": logging.WARNING, "failed": logging.ERROR, "error": logging.ERROR,
}  # fmt: skip


class Outcome(NamedTuple):
    """How a piece of work ended: `success`, `failed`, `timeout`, `error`, `cancelled`, `retry`."""

    status: str
    error: str = ""
    return_code: int | None = None  # negative: a signal, as subprocess has it


class Work:
    """A piece of work that is being done; `jobid` is its id in all lists."""

    def __init__(self, first: Run, data: str) -> None:
        self.run = first
        self._data = data_directory(data)
        self._said: Outcome | None = None
        self._begun = time.monotonic()
        _record(first, self._data)
        self._piece = _USAGE.begin()

    @property
    def jobid(self) -> str:
        """The id of its record, a UUID."""
        return self.run.jobid

    def fail(self, error: str = "", return_code: int | None = None) -> None:
        """Say that the work failed, though no exception tells."""
        self._said = Outcome("failed", error, return_code)

    def time_out(self, error: str = "") -> None:
        """Say that the work took too long."""
        self._said = Outcome("timeout", error)

    def end(self, outcome: Outcome, own_cpu: tuple[float, float] | None = None) -> Run:
        """Put the end on record and into the log. What fail() or time_out() said comes first."""
        if self._said is not None and outcome.status == "success":
            outcome = self._said
        used = _USAGE.end(self._piece, own_cpu)
        run = self.run._replace(
            user_cpu_seconds=_rounded(used.user_cpu_seconds),
            system_cpu_seconds=_rounded(used.system_cpu_seconds),
            peak_memory_bytes=used.peak_memory_bytes,
        )
        self.run = put_on_record(run, outcome, self._data, time.monotonic() - self._begun)
        return self.run

    def leave(self) -> None:
        """Follow it no longer: somebody else has put its end on record."""
        _USAGE.end(self._piece)


def put_on_record(run: Run, outcome: Outcome, data: Path, wall_seconds: float) -> Run:
    """Put the end of a piece of work on record and into the log."""
    code = outcome.return_code
    ended = run._replace(
        state=_STATES[outcome.status],
        state_word=outcome.status,
        end_time=max(int(time.time()), run.start_time or 0),
        wall_seconds=round(wall_seconds, 6),
        exit_code=code if code is None or code >= 0 else None,
        exit_signal=-code if code is not None and code < 0 else None,
        error=outcome.error[:_LONGEST],
    )
    _record(ended, data)
    _say(ended)
    sweep_daily(data, Keep())
    return ended


def _record(run: Run, data: Path) -> None:
    try:
        write(prepare(data, RUNS), run, durable=False)
    except OSError as error:
        where = error.filename or data
        log.warning("%s is not recorded: %s: %s", run.name or "work", where, error.strerror)


def first_record(name: str, tool: str, parameters: Mapping[str, Any] | None, by: str) -> Run:
    """The record of a piece of work that begins now in this process."""
    now = int(time.time())
    return Run(
        jobid=str(uuid.uuid4()),
        node=os.uname().nodename,
        user=login(),
        uid=os.geteuid(),
        submit_time=now,
        start_time=now,
        state=JobState.RUNNING,
        supervisor=_watcher(),
        name=name,
        submit_line=shlex.join(sys.orig_argv)[:_LONGEST],
        work_dir=_work_dir(),
        by=by,
        tool=tool,
        parameters=as_text(parameters or {}),
    )


class Tracker:
    """What track() gives: `with`, `async with`, or a decorator. Each use is a job of its own."""

    def __init__(
        self, name: str, tool: str, parameters: Mapping[str, Any] | None, data: str
    ) -> None:
        self._name = name
        self._tool = tool
        self._parameters = parameters
        self._data = data
        self._work: Work | None = None

    def __enter__(self) -> Work:
        """Begin."""
        return self._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; an exception goes on its way."""
        self._leave(error)

    async def __aenter__(self) -> Work:
        """Begin."""
        return self._enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; an exception goes on its way."""
        self._leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Follow each call of a function. Raises TypeError for generator functions."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"track: {function.__qualname__} is a generator function, whose calls end at once;"
                " put `with track(...):` into it"
            )
        name = self._name or getattr(function, "__qualname__", "")
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R]", self._follow_coroutine(function, name))

        @functools.wraps(function)
        def followed(*args: P.args, **kwargs: P.kwargs) -> R:
            work = self._begin(name)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                work.end(outcome_of(error))
                raise
            work.end(Outcome("success"))
            return result

        return followed

    def _enter(self) -> Work:
        if self._work is not None:
            raise RuntimeError("track: already entered; each `with` needs a track(...) of its own")
        self._work = self._begin(self._name)
        return self._work

    def _leave(self, error: BaseException | None) -> None:
        work, self._work = self._work, None
        assert work is not None
        work.end(outcome_of(error))

    def _follow_coroutine(self, function: Callable[..., Any], name: str) -> Any:
        @functools.wraps(function)
        async def followed(*args: Any, **kwargs: Any) -> Any:
            work = self._begin(name)
            used = [0.0, 0.0]
            try:
                result = await _in_steps(function(*args, **kwargs), used)
            except BaseException as error:
                work.end(outcome_of(error), (used[0], used[1]))
                raise
            work.end(Outcome("success"), (used[0], used[1]))
            return result

        return followed

    def _begin(self, name: str) -> Work:
        first = first_record(name, self._tool, self._parameters, "track")
        return Work(first, self._data)


@overload
def track(name: Callable[P, R]) -> Callable[P, R]: ...


@overload
def track(
    name: str = "",
    *,
    tool: str = "",
    parameters: Mapping[str, Any] | None = None,
    data: str = "",
) -> Tracker: ...


def track(
    name: Any = "",
    *,
    tool: str = "",
    parameters: Mapping[str, Any] | None = None,
    data: str = "",
) -> Any:
    """Follow a piece of work: `with track("name"):`, `@track` or `@track("name", tool="blast")`.

    Recorded are its duration (seconds), CPU time (seconds, of the process and its children as long
    as nothing else is followed beside it, else of its own thread or task), the process's peak
    memory (bytes) meanwhile, and how it ended: `success`; `failed` (fail() was called, SystemExit,
    subprocess.CalledProcessError); `timeout` (TimeoutError, subprocess.TimeoutExpired);
    `cancelled`; `error` for other exceptions, with their text. `parameters` are written as JSON.
    `data` is the data directory (default: $BATCHJOB_DATA or ~/.local/state/batchjob).
    """
    if callable(name):
        return Tracker("", tool, parameters, data)(name)
    return Tracker(name, tool, parameters, data)


@types.coroutine
def _in_steps(coroutine: Coroutine[Any, Any, R], used: list[float]) -> Generator[Any, Any, R]:
    """Await, and add up the CPU seconds of the thread while it is this coroutine's turn."""
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        before = thread_cpu()
        try:
            waits_for = step(given)
        except StopIteration as end:
            returned: R = end.value
            return returned
        finally:
            after = thread_cpu()
            used[0] += after[0] - before[0]
            used[1] += after[1] - before[1]
        try:
            given, step = (yield waits_for), coroutine.send
        except BaseException as error:  # whatever is thrown at us is thrown at it
            given, step = error, coroutine.throw


def outcome_of(error: BaseException | None) -> Outcome:
    """How work ended that let this exception through."""
    if error is None:
        return Outcome("success")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Outcome("failed" if code else "success", text if code else "", code)
    if isinstance(error, _classes("subprocess", "CalledProcessError")):
        return Outcome("failed", text, getattr(error, "returncode", None))
    if isinstance(error, (TimeoutError, *_classes("subprocess", "TimeoutExpired"))):
        return Outcome("timeout", text)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return Outcome("cancelled", text)
    gone = isinstance(error, _classes("asyncio", "CancelledError"))
    return Outcome("cancelled" if gone else "error", text)


def _classes(module: str, name: str) -> tuple[type[BaseException], ...]:
    """An exception of a module that was not imported cannot have been raised."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def as_text(parameters: Mapping[str, Any]) -> str:
    """JSON of parameters; what JSON has no form for as Python writes it. "" for none."""
    if not parameters:
        return ""
    try:
        text = json.dumps(dict(parameters), default=repr, ensure_ascii=False)
    except (TypeError, ValueError):  # keys that are no text, values within themselves
        text = json.dumps({str(key): repr(value) for key, value in parameters.items()})
    if len(text) <= _LONGEST:
        return text
    short = {str(key): repr(value)[:_SHORT] for key, value in parameters.items()}
    text = json.dumps(short, ensure_ascii=False)
    return text if len(text) <= _LONGEST else json.dumps({"parameters": f"{len(parameters)}"})


def _say(run: Run) -> None:
    name, seconds = run.name or run.jobid, run.wall_seconds or 0.0
    message = f"{name}: {run.status} after {seconds:.3f} s"
    if run.error:
        message += f": {run.error}"
    log.log(_LEVELS[run.state_word], "%s", message, extra={"jobid": run.jobid})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _watcher() -> Supervisor:
    try:
        return this_process()
    except OSError:  # no /proc: nobody will be able to tell whether we live
        return Supervisor(os.getpid(), 0, "")


def _work_dir() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
