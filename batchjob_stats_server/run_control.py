"""Starting and ending runs of this machine over the API: the interface for the routes."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from batchjob.local_runs.record import Run


class RunRefusedError(Exception):
    """A run cannot be started, ended or deleted; the text says why."""


class RunRequest(NamedTuple):
    """A run to be started, with the options of `batchjob run`. None: option not given."""

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
    """Runs belong to the user who runs the server, with all rights of that user."""

    @property
    def data(self) -> Path:
        """The data directory."""

    @property
    def cluster(self) -> str:
        """The cluster that the runs belong to."""

    def start(self, request: RunRequest) -> Run:
        """Start a run, or let it wait for its time. Raises RunRefusedError."""

    def stop(self, run: Run, grace_seconds: float) -> Run:
        """End an active run; returns it as it is after 30 s at most. Raises RunRefusedError."""

    def cancel(self, run: Run) -> Run:
        """Cancel a run that has not started. Raises RunRefusedError."""

    def delete(self, run: Run) -> None:
        """Delete the record, samples and output of a run. Raises RunRefusedError."""
