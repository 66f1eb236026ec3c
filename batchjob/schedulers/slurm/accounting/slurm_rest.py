"""Slurm's accounting from slurmrestd.

Facts: `/slurmdb/<version>/jobs`. Times are given as `uts<epoch>`, which all versions accept (plain
numbers fail in v0.0.38). None of the flags (`skip_steps` ...) is sent: with one, the server drops
its defaults and clips the times of jobs to the window.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import AccountingModule
from batchjob.schedulers.slurm.accounting.queries import ENDED, EVER, Parsed
from batchjob.schedulers.slurm.accounting.slurm_rest_records import parsed
from batchjob.schedulers.slurm.accounting.squeue_records import json_queue, queued_jobs
from batchjob.schedulers.slurm.accounting.windows import WindowOptions, WindowSource
from batchjob.schedulers.slurm.json_format import refuse_errors, rows, state_words
from batchjob.schedulers.slurm.slurmrestd import RestOptions, Slurmrestd

SOURCE = "slurm_rest"


@dataclass(frozen=True)
class SlurmRestOptions(WindowOptions, RestOptions):
    """Slurm's accounting by slurmrestd."""


def build(cluster: str, options: SlurmRestOptions) -> "SlurmRest":
    """The source for one cluster."""
    return SlurmRest(cluster, options)


class SlurmRest(WindowSource):
    """Queries slurmrestd for slurmdbd's ended jobs, and for slurmctld's others."""

    name = SOURCE

    def __init__(
        self,
        cluster: str,
        options: SlurmRestOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cluster, options, clock, monotonic)
        self._options = options
        self._server = Slurmrestd(options)

    def check(self) -> tuple[str, ...]:
        """See AccountingSource. The owner of the token determines what is visible."""
        if not self._options.user:
            return ()
        try:
            document = self._server.get("slurmdb", f"user/{self._options.user}")
            refuse_errors(document)
            users = rows(document, "users")
        except SchedulerError as error:
            return (f"cannot determine whether all jobs are visible: {error}",)
        levels = {word for user in users for word in state_words(user.get("administrator_level"))}
        if levels & {"Operator", "Administrator"} or self._options.user == "root":
            return ()
        user = self._options.user
        return (
            f"if Slurm's PrivateData has jobs, {user} sees only its own jobs: grant access "
            f"to all with `sacctmgr modify user {user} set adminlevel=Operator`",
        )

    def ended(self, begin: int, end: int, *, steps: bool) -> Iterator[Parsed]:
        """See SlurmQueries; `skip_steps` would have the server drop its defaults."""
        del steps
        return self._ask(
            {"start_time": f"uts{begin}", "end_time": f"uts{end}", "state": ",".join(ENDED)}
        )

    def by_id(self, jobids: Sequence[str]) -> Iterator[Parsed]:
        """See SlurmQueries."""
        return self._ask({"start_time": f"uts{EVER}", "step": ",".join(jobids)})

    def queue(self) -> Iterator[Parsed]:
        """See SlurmQueries."""
        document = self._server.get("slurm", "jobs")
        refuse_errors(document)
        return queued_jobs(SOURCE, self.cluster, json_queue(document))

    def _ask(self, query: dict[str, str]) -> Iterator[Parsed]:
        if self._options.slurm_cluster:
            query["cluster"] = self._options.slurm_cluster
        return parsed(SOURCE, self.cluster, self._server.get("slurmdb", "jobs", query))


ACCOUNTING = AccountingModule(SlurmRestOptions, build)
