"""Slurm's accounting by the command `sacct`."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from batchjob.call import CommandOptions, run
from batchjob.settings import option
from batchjob.values import text
from batchjob_stats_db.sources.sacct_rows import FIELDS, NEEDED, SOURCE, jobs, rows
from batchjob_stats_db.sources.slurm_rights import hidden
from batchjob_stats_db.sources.slurm_windows import EVER, Parsed, WindowOptions, Windows
from batchjob_stats_db.sources.source import Batch, SourceError, Unfinished


@dataclass(frozen=True)
class Options(WindowOptions, CommandOptions):
    """Slurm's accounting by sacct."""

    sacct: str = option("sacct", "The command sacct, or its path.", parse=text)
    squeue: str = option("squeue", "The command squeue, or its path.", parse=text)
    sacctmgr: str = option("sacctmgr", "The command sacctmgr, or its path.", parse=text)


def build(cluster: str, options: Options) -> "Sacct":
    """The source for one cluster."""
    return Sacct(cluster, options)


class Sacct:
    """Calls sacct, and squeue to compare."""

    name = SOURCE

    def __init__(
        self, cluster: str, options: Options, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._options = options
        self._fields: tuple[str, ...] = ()
        self._windows = Windows(SOURCE, self, options, clock)

    def check(self) -> tuple[str, ...]:
        """See Source."""
        return hidden(self._options, self._options.sacctmgr, ("jobs", "all"))

    def watermark_at(self, since: int) -> str:
        """Watermarks are the epoch seconds until which all is read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        return self._windows.read(watermark, unfinished)

    def window(self, begin: int, end: int, states: Sequence[str]) -> Iterator[Parsed]:
        """See Asking."""
        return self._ask(begin, end, ["--state", ",".join(states)])

    def by_id(self, jobids: Sequence[str], end: int) -> Iterator[Parsed]:
        """See Asking."""
        return self._ask(EVER, end, ["--jobs", ",".join(jobids)])

    def queue(self) -> set[str]:
        """See Asking."""
        argv = [self._options.squeue, "--noheader", "--all", "--format=%A", *self._cluster()]
        return set(run(self._options, argv).stdout.decode("utf-8", "replace").split())

    def _ask(self, begin: int, end: int, selection: Sequence[str]) -> Iterator[Parsed]:
        fields = self._known_fields()
        delimiter = "\x1f" + secrets.token_urlsafe(3)
        argv = [
            self._options.sacct, "--allusers", "--duplicates", "--noheader", "--parsable",
            "--noconvert", f"--delimiter={delimiter}", f"--format={','.join(fields)}",
            "--starttime", f"uts{begin}", "--endtime", f"uts{end}", *selection, *self._cluster(),
        ]  # fmt: skip
        if "StdOut" in fields:  # both came with 24.05
            argv.append("--expand-patterns")
        answer = run(self._options, argv, {"SLURM_TIME_FORMAT": "%s"})
        return jobs(self.cluster, rows(answer.stdout, fields, delimiter))

    def _cluster(self) -> list[str]:
        name = self._options.slurm_cluster
        return [f"--clusters={name}"] if name else []

    def _known_fields(self) -> tuple[str, ...]:
        """Those of FIELDS that this release has; an unknown one would fail the call."""
        if not self._fields:
            answer = run(self._options, [self._options.sacct, "--helpformat"])
            known = set(answer.stdout.decode("utf-8", "replace").split())
            if not known >= NEEDED:
                raise SourceError(f"{self._options.sacct} --helpformat does not list its fields")
            self._fields = tuple(field for field in FIELDS if field in known)
        return self._fields
