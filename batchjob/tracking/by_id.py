"""Work that begins in one place of a program and ends in another, identified by its id.

batchjob.begin_work("order-17", "import", tool="loader")
...
batchjob.end_work("order-17")
"""

import threading
from collections.abc import Mapping
from typing import Any

from batchjob.local_runs.record import Run
from batchjob.tracking.tracker import track
from batchjob.tracking.work import Work, WorkOutcome, outcome_of_error

_LOCK = threading.Lock()
_WORKS: dict[str, Work] = {}


class UnknownWorkError(LookupError):
    """No work with this id is running in this process."""


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
    """End the work with this id, and return its record. Raises UnknownWorkError.

    Without further arguments it was a `success`; an exception decides how it ended as in a `with`;
    a text is an `error`. `status`: success, failed, error, timeout or cancelled.
    Only the type of `result` is recorded.
    """
    with _LOCK:
        work = _WORKS.pop(id, None)
    if work is None:
        raise UnknownWorkError(f"no work {id!r} was begun in this process, or it has ended")
    if isinstance(error, BaseException):
        outcome = outcome_of_error(error)
        text = outcome.error
    else:
        text = error or ""
        outcome = WorkOutcome("error" if text else "success")
    code = outcome.return_code if return_code is None else return_code
    work.set_result(result)
    return work.end(WorkOutcome(status or outcome.status, text, code))
