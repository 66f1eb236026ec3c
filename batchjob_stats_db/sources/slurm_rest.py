"""Slurm's accounting by slurmrestd.

Facts: `/slurmdb/<version>/jobs`. Times are given as `uts<epoch>`, which all versions take (plain
numbers fail in v0.0.38). None of the flags (`skip_steps` ...) is sent: with one, the server drops
its defaults and clips the times of jobs to the window.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from batchjob.call import SchedulerError
from batchjob.slurm_json import job_ids_in_queue, refuse_errors, rows, state_words
from batchjob.slurmrestd import RestOptions, Slurmrestd
from batchjob_stats_db.sources.slurm_rest_rows import parsed
from batchjob_stats_db.sources.slurm_windows import EVER, Parsed, WindowOptions, Windows
from batchjob_stats_db.sources.source import Batch, Unfinished

SOURCE = "slurm_rest"


@dataclass(frozen=True)
class Options(WindowOptions, RestOptions):
    """Slurm's accounting by slurmrestd."""


def build(cluster: str, options: Options) -> "SlurmRest":
    """The source for one cluster."""
    return SlurmRest(cluster, options)


class SlurmRest:
    """Asks slurmrestd for slurmdbd's jobs, and for slurmctld's to compare."""

    name = SOURCE

    def __init__(
        self, cluster: str, options: Options, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._options = options
        self._server = Slurmrestd(options)
        self._windows = Windows(SOURCE, self, options, clock)

    def check(self) -> tuple[str, ...]:
        """See Source. Whom the token belongs to decides what is seen."""
        if not self._options.user:
            return ()
        try:
            document = self._server.get("slurmdb", f"user/{self._options.user}")
            refuse_errors(document)
            users = rows(document, "users")
        except SchedulerError as error:
            return (f"cannot find out whether all jobs may be seen: {error}",)
        levels = {word for user in users for word in state_words(user.get("administrator_level"))}
        if levels & {"Operator", "Administrator"} or self._options.user == "root":
            return ()
        user = self._options.user
        return (
            f"if Slurm's PrivateData has jobs, {user} sees only its own: "
            f"grant all with `sacctmgr modify user {user} set adminlevel=Operator`",
        )

    def watermark_at(self, since: int) -> str:
        """Watermarks are the epoch seconds until which all is read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        return self._windows.read(watermark, unfinished)

    def window(self, begin: int, end: int, states: Sequence[str]) -> Iterator[Parsed]:
        """See Asking."""
        return self._ask(
            {"start_time": f"uts{begin}", "end_time": f"uts{end}", "state": ",".join(states)}
        )

    def by_id(self, jobids: Sequence[str], end: int) -> Iterator[Parsed]:
        """See Asking."""
        return self._ask(
            {"start_time": f"uts{EVER}", "end_time": f"uts{end}", "step": ",".join(jobids)}
        )

    def queue(self) -> set[str]:
        """See Asking."""
        return job_ids_in_queue(self._server.get("slurm", "jobs"))

    def _ask(self, query: dict[str, str]) -> Iterator[Parsed]:
        if self._options.slurm_cluster:
            query["cluster"] = self._options.slurm_cluster
        return parsed(SOURCE, self.cluster, self._server.get("slurmdb", "jobs", query))
