"""Track a piece of work in a program, and record it as a job.

    from batchjob import track

    with track("resize", tool="pillow", parameters={"width": 800}) as work:
        ...
        if not well:
            work.fail("3 of 40 images are broken")

    @track(tool="blast", parameters={"database": "nt"})
    async def search(sequence): ...

Tracking never changes what the work does: exceptions propagate, and a failure to record is logged
as a warning and not raised.
"""

import functools
import inspect
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast, overload

from batchjob.local_runs.record import Run
from batchjob.tracking.process_usage import thread_cpu
from batchjob.tracking.work import (
    Work,
    WorkOutcome,
    initial_record,
    outcome_of_error,
    outcome_of_result,
)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class Tracker:
    """For `with`, `async with`, or as a decorator. Each use is a job of its own."""

    name: str
    tool: str
    parameters: Mapping[str, Any] | None
    id: str
    workflow: str
    data: str
    _work: Work | None = field(default=None, init=False)

    def __enter__(self) -> Work:
        if self._work is not None:
            raise RuntimeError("track: already entered; each `with` needs a track(...) of its own")
        self._work = self.begin()
        return self._work

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        work, self._work = self._work, None
        assert work is not None
        work.end(outcome_of_error(error))

    async def __aenter__(self) -> Work:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Track each call of a function. Raises TypeError for generator functions."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"track: {function.__qualname__} is a generator function, whose calls return "
                "at once; use `with track(...):` inside it"
            )
        name = self.name or getattr(function, "__qualname__", "")
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R]", self._track_coroutine(function, name))

        @functools.wraps(function)
        def tracked(*args: P.args, **kwargs: P.kwargs) -> R:
            work = self._begin(name)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                work.end(outcome_of_error(error))
                raise
            work.end(outcome_of_result(result))
            return result

        return tracked

    def begin(self) -> Work:
        """Begin without `with`; the caller must call `end` of the returned work."""
        return self._begin(self.name)

    def _track_coroutine(self, function: Callable[..., Any], name: str) -> Any:
        @functools.wraps(function)
        async def tracked(*args: Any, **kwargs: Any) -> Any:
            work = self._begin(name)
            cpu_seconds = [0.0, 0.0]
            try:
                result = await _await_measuring_cpu(function(*args, **kwargs), cpu_seconds)
            except BaseException as error:
                work.end(outcome_of_error(error), (cpu_seconds[0], cpu_seconds[1]))
                raise
            work.end(outcome_of_result(result), (cpu_seconds[0], cpu_seconds[1]))
            return result

        return tracked

    def _begin(self, name: str) -> Work:
        initial = initial_record(name, self.tool, self.parameters, "track")
        return Work(initial._replace(record_id=self.id, workflow=self.workflow), self.data)


@overload
def track(name: Callable[P, R]) -> Callable[P, R]: ...


@overload
def track(
    name: str = "",
    *,
    tool: str = "",
    parameters: Mapping[str, Any] | None = None,
    id: str = "",
    workflow: str = "",
    data: str = "",
) -> Tracker: ...


def track(
    name: Any = "",
    *,
    tool: str = "",
    parameters: Mapping[str, Any] | None = None,
    id: str = "",
    workflow: str = "",
    data: str = "",
) -> Any:
    """Track a piece of work: `with track("name"):`, `@track` or `@track("name", tool="blast")`.

    Its record has its duration (seconds), CPU time (seconds, of the process and its children unless
    other tracked work runs at the same time, else of its own thread or task), the process's peak
    memory (bytes) meanwhile, and how it ended: `success`; `failed` (fail() was called, SystemExit,
    subprocess.CalledProcessError); `timeout` (TimeoutError, subprocess.TimeoutExpired);
    `cancelled`; `error` for other exceptions, with their text. `parameters` are written as JSON.
    Of a return value, or the argument of set_result(), only the type is recorded.
    `id` is your own name for this piece of work, `workflow` one for several that belong together.
    `data` is the data directory (default: $BATCHJOB_DATA or ~/.local/state/batchjob).
    """
    if callable(name):
        return Tracker("", tool, parameters, id, workflow, data)(name)
    return Tracker(name, tool, parameters, id, workflow, data)


@types.coroutine
def _await_measuring_cpu(
    coroutine: Coroutine[Any, Any, R], cpu_seconds: list[float]
) -> Generator[Any, Any, R]:
    """Await, and add up the CPU seconds of the thread while it is this coroutine's turn."""
    step: Callable[[Any], Any] = coroutine.send
    sent: Any = None
    while True:
        before = thread_cpu()
        try:
            awaited = step(sent)
        except StopIteration as end:
            result: R = end.value
            return result
        finally:
            after = thread_cpu()
            cpu_seconds[0] += after[0] - before[0]
            cpu_seconds[1] += after[1] - before[1]
        try:
            sent, step = (yield awaited), coroutine.send
        except BaseException as error:  # forward every exception to the coroutine
            sent, step = error, coroutine.throw


_LOCK = threading.Lock()
_WORKS: dict[str, Work] = {}


def begin_work(
    id: str,
    name: str = "",
    *,
    tool: str = "",
    parameters: Mapping[str, Any] | None = None,
    workflow: str = "",
    data: str = "",
) -> Work:
    """Begin a piece of work, as `track` does, for code that cannot use `with`.

    Raises ValueError for an empty id, and if work with this id is already running in this process.
    """
    if not id:
        raise ValueError("begin_work: expected an id")
    with _LOCK:
        if id in _WORKS:
            raise ValueError(f"begin_work: work {id!r} has already begun")
        tracker = track(
            name or id, tool=tool, parameters=parameters, id=id, workflow=workflow, data=data
        )
        _WORKS[id] = work = tracker.begin()
    return work


def end_work(
    id: str,
    error: BaseException | str | None = None,
    *,
    status: str = "",
    return_code: int | None = None,
    result: object = None,
) -> Run:
    """End the work with this id, and return its record. Raises LookupError.

    Without further arguments it was a `success`; an exception decides how it ended as in a `with`;
    a text is an `error`. `status`: success, failed, error, timeout or cancelled.
    Only the type of `result` is recorded.
    """
    with _LOCK:
        work = _WORKS.pop(id, None)
    if work is None:
        raise LookupError(f"no work {id!r} was begun in this process, or it has ended")
    if isinstance(error, BaseException):
        outcome = outcome_of_error(error)
        text = outcome.error
    else:
        text = error or ""
        outcome = WorkOutcome("error" if text else "success")
    code = outcome.return_code if return_code is None else return_code
    work.set_result(result)
    return work.end(WorkOutcome(status or outcome.status, text, code))
