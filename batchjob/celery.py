"""Celery tasks as jobs: each attempt is recorded, with its retries, time limits and errors.

    from batchjob.celery import follow

    app = Celery("tasks", broker=...)
    follow(app)

Signals: docs.celeryq.dev, userguide/signals. A worker process records its own attempts. If it is
killed (hard time limit, terminated, lost), the worker's main process writes the end of the record.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS, data_directory
from batchjob.local_runs.record import Run, RunFileError
from batchjob.schedulers.states import JobState
from batchjob.tracking.work import (
    Work,
    WorkOutcome,
    initial_record,
    outcome_of_error,
    outcome_of_result,
    record_end,
)

log = logging.getLogger("batchjob.track")

_NAMESPACE = uuid.UUID("6f1d3c5e-6f0e-4b7e-9a52-6d1f4b0c2a77")  # a random UUID
_MAX_RETRIES = 10_000
_OUTCOMES_BY_STATE: dict[str | None, WorkOutcome] = {
    "IGNORED": WorkOutcome("success"),
    "REJECTED": WorkOutcome("failed", "rejected"),
}
_WORKER_ENDED = WorkOutcome("cancelled", "the worker exited")

Tools = Mapping[str, str] | Callable[[Any], str]
"""The tool of a task: by the task's name, or what a function returns for the task."""


def follow(
    app: Celery, *, arguments: bool = False, data: str = "", tool: Tools | None = None
) -> None:
    """Record each task of the app; call this once, where the app is created.

    `arguments`: also record the arguments of tasks, which may be confidential. `data`: the data
    directory (default: $BATCHJOB_DATA or ~/.local/state/batchjob). `tool`: names the tool of a
    task; where it names none, that is the module which defines the task. Raises TypeError if it is
    neither a mapping nor a function.
    """
    if tool is not None and not isinstance(tool, Mapping) and not callable(tool):
        raise TypeError(f"tool: expected a mapping of task names or a function, got {tool!r}")
    follower = _Follower(app, arguments, data, tool)
    signals.task_prerun.connect(follower.begin, weak=False)
    signals.task_retry.connect(follower.record_retry, weak=False)
    signals.task_failure.connect(follower.record_failure, weak=False)
    signals.task_revoked.connect(follower.record_revocation, weak=False)
    signals.task_postrun.connect(follower.end, weak=False)


def jobid_of(task_id: str, retries: int) -> str:
    """The id of an attempt's record, which the worker's main process can derive as well."""
    return str(uuid.uuid5(_NAMESPACE, f"{task_id}/{retries}"))


class _Follower:
    """The attempts that run in this process, by task id.

    Handlers take the arguments of Celery's signals.
    """

    def __init__(self, app: Celery, arguments: bool, data: str, tools: Tools | None) -> None:
        self._app = app
        self._arguments = arguments
        self._tools = tools
        self._data = data
        self._running: dict[str, Work] = {}
        self._outcomes: dict[str, WorkOutcome] = {}

    def begin(self, task_id: str, task: Any, args: Any, kwargs: Any, **_: Any) -> None:
        if task.app.main != self._app.main:
            return
        request = task.request
        parameters: dict[str, Any] = {"args": args, "kwargs": kwargs} if self._arguments else {}
        run = initial_record(task.name, _tool_of(task, self._tools), parameters, "celery")
        retries = int(request.retries or 0)
        soft_and_hard = [limit for limit in reversed(request.timelimit or ()) if limit]
        run = run._replace(
            jobid=jobid_of(task_id, retries),
            record_id=task_id,
            workflow=self._workflow(request),
            restarts=retries,
            time_limit_seconds=int(min(soft_and_hard)) if soft_and_hard else None,
        )
        self._running[task_id] = Work(run, self._data)

    def _workflow(self, request: Any) -> str:
        """The workflow of a task: the first task of its chain, or its group.

        A chord's callback is started by a task of the group and belongs to that task's workflow.
        """
        root = request.root_id or ""
        if request.group and root in ("", request.id):
            return str(request.group)
        if root in ("", request.id):
            return request.id if request.chain or request.callbacks else ""
        root_run = _last_attempt(data_directory(self._data) / RUNS, root)
        return root_run.workflow or root if root_run is not None else root

    def record_retry(self, request: Any, reason: Any, **_: Any) -> None:
        self._outcomes[request.id] = WorkOutcome("retry", str(reason))

    def record_failure(self, task_id: str, exception: BaseException, **_: Any) -> None:
        """End a failed attempt of this process, or of a worker process that has exited."""
        if task_id in self._running:
            self._outcomes[task_id] = _outcome_of_exception(exception)
        else:
            self._end_killed_attempt(task_id, _outcome_of_exception(exception))

    def record_revocation(self, request: Any, terminated: bool = False, **_: Any) -> None:
        if terminated:
            self._end_killed_attempt(request.id, WorkOutcome("cancelled", "revoked"))

    def end(self, task_id: str, state: str | None = None, retval: Any = None, **_: Any) -> None:
        """End an attempt of this process. Without a state, the process is being terminated."""
        work = self._running.pop(task_id, None)
        outcome = self._outcomes.pop(task_id, None)
        if work is None:
            return
        if outcome is None and state is None and self._is_end_recorded(work.jobid):
            work.stop_tracking()
        else:
            if outcome is None and state == "SUCCESS":
                outcome = outcome_of_result(retval)
            work.end(outcome or _OUTCOMES_BY_STATE.get(state, _WORKER_ENDED))

    def _is_end_recorded(self, jobid: str) -> bool:
        """Whether the worker's main process has already written the end of this attempt."""
        run = _read_run(data_directory(self._data) / RUNS / f"{jobid}.json")
        return run is not None and not run.state.is_live

    def _end_killed_attempt(self, task_id: str, outcome: WorkOutcome) -> None:
        """End the record of a process that was killed; its resource usage is unknown."""
        directory = data_directory(self._data) / RUNS
        run = _last_attempt(directory, task_id)
        if run is not None and run.state == JobState.RUNNING and run.node == os.uname().nodename:
            record_end(run, outcome, directory.parent, max(0.0, time.time() - run.submit_time))


def _tool_of(task: Any, tools: Tools | None) -> str:
    """The tool of a task; a function that fails must not fail the task."""
    named: object = None
    try:
        named = tools.get(task.name) if isinstance(tools, Mapping) else tools and tools(task)
    except Exception:  # whatever the site's function raises, the task goes on
        log.warning("%s: the function `tool` of follow() failed", task.name, exc_info=True)
    if named is not None and not isinstance(named, str):
        log.warning("%s: `tool` of follow(): expected a text, got %r", task.name, named)
        named = None
    return named or str(task.__module__)


def _outcome_of_exception(exception: BaseException) -> WorkOutcome:
    if isinstance(exception, (SoftTimeLimitExceeded, TimeLimitExceeded)):
        return WorkOutcome("timeout", outcome_of_error(exception).error)
    return outcome_of_error(exception)


def _last_attempt(directory: Path, task_id: str) -> Run | None:
    last = None
    for retries in range(_MAX_RETRIES):
        path = directory / f"{jobid_of(task_id, retries)}.json"
        if not path.exists():
            break
        last = path
    return None if last is None else _read_run(last)


def _read_run(path: Path) -> Run | None:
    try:
        return run_files.decode_run(run_files.read(path, (0, os.geteuid())))
    except (OSError, RunFileError):
        return None
