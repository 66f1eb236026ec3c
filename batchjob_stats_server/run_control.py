"""Runs of this machine that are started and ended over the API: what the routes need for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from batchjob.local_runs.record import Run


class RunRefusedError(Exception):
    """A run cannot be started, ended or deleted; the text says why."""


class RunRequest(NamedTuple):
    """A run that is to be; as the options of `batchjob run`. None: as without the option."""

    command: tuple[str, ...]
    name: str = ""
    directory: str = ""
    environment: Mapping[str, str] = {}
    cpus: float | None = None
    cpu_list: str | None = None
    memory_bytes: int | None = None
    io_bytes_per_second: int | None = None
    time_limit_seconds: float | None = None
    start_time: float | None = None  # epoch seconds
    best_effort: bool = False


class RunControl(Protocol):
    """Runs belong to whoever runs the server, with all the rights of that user."""

    @property
    def data(self) -> Path:
        """The data directory."""

    @property
    def cluster(self) -> str:
        """The cluster that the runs belong to."""

    def start(self, request: RunRequest) -> Run:
        """Start a run, or have it wait for its time. Raises RunRefusedError."""

    def stop(self, run: Run, grace_seconds: float) -> Run:
        """End a run that goes on; how it ended. Raises RunRefusedError."""

    def cancel(self, run: Run) -> Run:
        """End a run that has not begun. Raises RunRefusedError."""

    def delete(self, run: Run) -> None:
        """Delete the record, samples and output of a run. Raises RunRefusedError."""
