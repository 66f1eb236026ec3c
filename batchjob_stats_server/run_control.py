"""Starting and ending runs of this machine over the API: the interface for the routes."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from batchjob.local_runs.record import Run

if TYPE_CHECKING:
    from batchjob_stats_server.api.local_runs import NewRun


class RunRefusedError(Exception):
    """A run cannot be started, ended or deleted; the text says why."""


class RunControl(Protocol):
    """Runs belong to the user who runs the server, with all rights of that user."""

    @property
    def data(self) -> Path:
        """The data directory."""

    @property
    def cluster(self) -> str:
        """The cluster that the runs belong to."""

    def start(self, new_run: "NewRun") -> Run:
        """Start a run, or let it wait for its time. Raises RunRefusedError."""

    def stop(self, run: Run, grace_seconds: float) -> Run:
        """End an active run; returns it as it is after 30 s at most. Raises RunRefusedError."""

    def cancel(self, run: Run) -> Run:
        """Cancel a run that has not started. Raises RunRefusedError."""

    def delete(self, run: Run) -> None:
        """Delete the record, samples and output of a run. Raises RunRefusedError."""
