"""Work that begins in one place of a program and ends in another: the two meet by its id.

batchjob.begin_work("order-17", "import", tool="loader")
...
batchjob.end_work("order-17")
"""

import threading
from collections.abc import Mapping
from typing import Any

from batchjob.local_runs.record import Run
from batchjob.tracking.outcome import WorkOutcome, outcome_of
from batchjob.tracking.tracker import track
from batchjob.tracking.work import Work

_LOCK = threading.Lock()
_WORKS: dict[str, Work] = {}


class UnknownWorkError(LookupError):
    """No work of this id goes on in this process."""


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

    Raises ValueError for an empty id, and where work of this id goes on in this process already.
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
    """End it; its record. Raises UnknownWorkError.

    Without anything else it was a `success`; an exception says how it ended as in a `with`; a text
    alone is an `error`. `status`: success, failed, error, timeout or cancelled.
    Of a `result` the type is recorded.
    """
    with _LOCK:
        work = _WORKS.pop(id, None)
    if work is None:
        raise UnknownWorkError(f"no work {id!r} was begun in this process, or it has ended")
    if isinstance(error, BaseException):
        outcome = outcome_of(error)
        text = outcome.error
    else:
        text = error or ""
        outcome = WorkOutcome("error" if text else "success")
    code = outcome.return_code if return_code is None else return_code
    work.set_result(result)
    return work.end(WorkOutcome(status or outcome.status, text, code))
