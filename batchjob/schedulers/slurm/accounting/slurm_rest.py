"""Slurm's accounting from slurmrestd.

Facts: `/slurmdb/<version>/jobs`. Times are given as `uts<epoch>`, which all versions accept (plain
numbers fail in v0.0.38). None of the flags (`skip_steps` ...) is sent: with one, the server drops
its defaults and clips the times of jobs to the window.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from batchjob.runtime.formatting import format_count
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import AccountingModule
from batchjob.schedulers.slurm.accounting import site_accounting
from batchjob.schedulers.slurm.accounting.queries import EARLIEST_TIME, END_STATES, ParsedJob
from batchjob.schedulers.slurm.accounting.slurm_rest_records import parse_jobs
from batchjob.schedulers.slurm.accounting.squeue_records import parse_json_queue, queued_jobs
from batchjob.schedulers.slurm.accounting.windows import WindowOptions, WindowSource
from batchjob.schedulers.slurm.cluster_json import controller
from batchjob.schedulers.slurm.json_format import raise_for_errors, rows, state_words
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd

_SOURCE = "slurm_rest"
_FEW_JOBS = 10  # as many may start or end within the minute of a count


@dataclass(frozen=True)
class SlurmRestOptions(WindowOptions, RestOptions):
    """Slurm's accounting by slurmrestd."""


class SlurmRest(WindowSource):
    """Queries slurmrestd for slurmdbd's ended jobs, and for slurmctld's others."""

    name = _SOURCE

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
        self._queue_was_empty = False

    def check(self) -> tuple[str, ...]:
        """See AccountingSource. The owner of the token or process determines what is visible."""
        try:
            if not self._options.user:
                queue = parse_json_queue(self._server.get("slurm", "jobs"))
                return self._hidden_jobs([row.values["State"] for row in queue])
            document = self._server.get("slurmdb", f"user/{self._options.user}")
            raise_for_errors(document)
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

    def query_ended(self, begin: int, end: int, *, steps: bool) -> Iterator[ParsedJob]:
        """See WindowSource; `skip_steps` would have the server drop its defaults."""
        del steps
        return self._query_jobs(
            {"start_time": f"uts{begin}", "end_time": f"uts{end}", "state": END_STATES}
        )

    def query_by_id(self, jobids: Sequence[str]) -> Iterator[ParsedJob]:
        times = {"start_time": f"uts{EARLIEST_TIME}", "end_time": f"uts{self.latest_time()}"}
        return self._query_jobs({**times, "step": jobids})

    def query_queue(self) -> Iterator[ParsedJob]:
        document = self._server.get("slurm", "jobs")
        raise_for_errors(document)
        queue = list(parse_json_queue(document))
        was_empty, self._queue_was_empty = self._queue_was_empty, not queue
        if was_empty and not queue:  # once may be newer than Slurm's count, of each minute
            hidden: tuple[str, ...] = ()
            with suppress(SchedulerError):
                hidden = self._hidden_jobs(())
            if hidden:
                raise SchedulerError(hidden[0])
        return queued_jobs(_SOURCE, self.cluster, queue)

    def _hidden_jobs(self, listed: Sequence[str]) -> tuple[str, ...]:
        """What to grant if slurmctld counts unfinished jobs of which it lists none or few.

        `listed`: their states. The counts are a minute old at most; those of waiting jobs are of
        the tasks of arrays, which are listed together, so that running jobs are compared.
        """
        counts = controller(self._server.get("slurm", "diag")).numbers
        running = int(counts.get("running", 0))
        number, shown = int(counts.get("pending", 0)) + running, "none"
        if listed:
            number, seen = running, listed.count("RUNNING")
            shown = str(seen)
            if seen * 2 >= running or running < _FEW_JOBS:
                return ()
        if not number:
            return ()
        return (
            f"slurmctld has {format_count(number, 'job')} but lists {shown}: PrivateData hides the "
            "jobs from the user that slurmrestd runs as, or that the token belongs to: grant "
            "access with `sacctmgr modify user NAME set adminlevel=Operator`",
        )

    def _query_jobs(self, query: dict[str, str | Sequence[str]]) -> Iterator[ParsedJob]:
        if self._options.slurm_cluster:
            query["cluster"] = self._options.slurm_cluster
        site = self._site_accounting()
        document = self._server.get("slurmdb", "jobs", query)
        return self.add_exit_codes(parse_jobs(_SOURCE, self.cluster, document, site))

    def _site_accounting(self) -> site_accounting.SiteAccounting:
        """What figures mean here: slurmrestd tells the configuration since v0.0.45."""
        if self._site:
            return self._site
        try:
            site = site_accounting.parse_json_configuration(self._server.get("slurm", "conf"))
        except RestError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                # slurmctld is asked again
                return site_accounting.AS_PRINTED.without_configuration()
            site = site_accounting.AS_PRINTED
        self._site = site
        return site


ACCOUNTING = AccountingModule(SlurmRestOptions, SlurmRest)
