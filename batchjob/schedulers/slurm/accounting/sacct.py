"""Slurm's jobs from its commands: `sacct` for ended jobs, `squeue` for the others."""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, CommandOutputError, SchedulerError, run
from batchjob.runtime.values import size
from batchjob.schedulers.accounting import AccountingModule, JobComment, SourceError, SubmittedJob
from batchjob.schedulers.fields import FieldReader, epoch
from batchjob.schedulers.records import QuarantinedRow
from batchjob.schedulers.slurm.accounting import sacct_records, squeue_records
from batchjob.schedulers.slurm.accounting.exit_codes import parse_release
from batchjob.schedulers.slurm.accounting.queries import (
    EARLIEST_TIME,
    END_STATES,
    MAX_IDS_PER_QUERY,
    ParsedJob,
)
from batchjob.schedulers.slurm.accounting.site_accounting import (
    SiteAccounting,
    check_visibility,
    site_accounting,
)
from batchjob.schedulers.slurm.accounting.windows import WindowOptions, WindowSource


@dataclass(frozen=True)
class SacctOptions(WindowOptions, CommandOptions):
    sacct: str = option("sacct", "The command sacct, or its path.")
    squeue: str = option("squeue", "The command squeue, or its path.")
    scontrol: str = option("scontrol", "The command scontrol, or its path.")
    sacctmgr: str = option("sacctmgr", "The command sacctmgr, or its path.")
    # fmt: off
    batch_scripts: bool = option(False,
        "Keep the batch scripts of jobs, shown only to their users and to admins. Slurm stores "
        "them with AccountingStoreFlags=job_script (21.08 and later).")
    batch_script_size: int = option(65536,
        "Maximum size of a script; longer ones are truncated.", parse=size)
    admin_comments: bool = option(False,
        "Write jobstats' summary of each job that has ended into its AdminComment, if that is "
        "empty. Needs sacctmgr of Slurm 23.02 or later, and a Slurm operator.")
    # fmt: on


_RULE = "-" * 80
_MAX_SCRIPT_BYTES = 64 << 20  # bytes; SchedulerParameters=max_script_size is 4 MB by default


class Sacct(WindowSource):
    name = sacct_records.SOURCE

    def __init__(
        self,
        cluster: str,
        options: SacctOptions,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cluster, options, clock, monotonic)
        self._options = options
        self.script_bytes = options.batch_script_size if options.batch_scripts else 0
        self._keeps_case = False  # set once sacctmgr is known to
        self.writes_comments = options.admin_comments
        self._fields: tuple[str, ...] = ()

    def check(self) -> tuple[str, ...]:
        lines = check_visibility(self._options, self._options.sacctmgr, ("jobs", "all"))
        try:
            if self.writes_comments:
                self._check_sacctmgr()
        except SchedulerError as error:
            return (*lines, f"admin-comments: {error}")
        return lines

    def query_ended(self, begin: int, end: int, *, steps: bool) -> Iterator[ParsedJob]:
        selection = ["--starttime", f"uts{begin}", "--endtime", f"uts{end}"]
        selection += ["--state", ",".join(END_STATES)]
        return self._query_jobs([*selection, *(() if steps else ("--allocations",))])

    def query_by_id(self, jobids: Sequence[str]) -> Iterator[ParsedJob]:
        times = ["--starttime", f"uts{EARLIEST_TIME}", "--endtime", f"uts{self.latest_time()}"]
        return self._query_jobs([*times, "--jobs", ",".join(jobids)])

    def query_queue(self) -> Iterator[ParsedJob]:
        exact_exits = self._site_accounting().exact_exits
        delimiter = _random_delimiter()
        cluster = self._cluster_option() or ["--local"]  # in a federation, only this cluster's jobs
        # slurmctld keeps a job for MinJobAge (5 minutes) after its end, with its exit status.
        # squeue has had the column since 26.05, as sacct has had this one.
        sluid = ("SLUID",) if "OriginalSLUID" in self._supported_fields() else ()
        fields = (*squeue_records.QUEUE_FIELDS, *sluid, *(() if exact_exits else ("exit_code",)))
        columns = ",".join(f"{field}:0{delimiter}" for field in fields)
        states = () if exact_exits else ("--states=all",)
        argv = [self._options.squeue, "--noheader", "--all", f"--Format={columns}"]
        argv += [*cluster, *self._expand_patterns(), *states]
        queried_at = self._clock()
        output = run(self._options, argv, {"SLURM_TIME_FORMAT": "%s"})
        rows = self._with_resize_times(sacct_records.parse_rows(output, fields, delimiter))
        rows = squeue_records.add_suspension_times(rows, queried_at, self._clock())
        return squeue_records.queued_jobs(sacct_records.SOURCE, self.cluster, rows)

    def _with_resize_times(
        self, rows: Iterator[FieldReader | QuarantinedRow]
    ) -> Iterator[FieldReader | QuarantinedRow]:
        """The rows with a ResizeTime from accounting, which has a record since the resize.

        squeue prints the time as a duration, often as INVALID. A job whose record has not come yet
        is left out. Of an id that was used again, or of an earlier resize, there are older records.
        """
        resized: dict[str, FieldReader] = {}
        for row in rows:
            if (
                isinstance(row, FieldReader)
                and row.values["ResizeTime"] not in squeue_records.NO_RESIZE
            ):
                if squeue_records.is_wanted(row.values):
                    resized[row.values["JobID"]] = row
            else:
                yield row
        ids = list(resized)
        for at in range(0, len(ids), MAX_IDS_PER_QUERY):
            newest: dict[str, int] = {}
            for job, _ in self._records_of(ids[at : at + MAX_IDS_PER_QUERY]):
                if job and job.jobid in resized:
                    row = resized[job.jobid]
                    if job.end_time is None or not squeue_records.queued_state(row.values).is_live:
                        newest[job.jobid] = max(job.submit_time, newest.get(job.jobid, 0))
            for jobid, since in newest.items():
                row = resized[jobid]
                submitted = FieldReader(row.values).get("SubmitTime", epoch) or 0
                if since > submitted:
                    yield FieldReader({**row.values, "ResizeTime": str(since)})

    def _records_of(self, resized: Sequence[str]) -> Sequence[ParsedJob]:
        """What accounting has of jobs; none if it does not answer, for the others are listed."""
        try:
            found = list(self.query_by_id(resized))
        except SchedulerError as error:
            self._once.failure("resized", "%s: resized jobs: %s", sacct_records.SOURCE, error)
            return ()
        self._once.forget("resized")
        return found

    def script(self, job: SubmittedJob) -> str:
        """See ScriptSource: one job per query, so no script can pass for another job's."""
        # The raw id of a task of an array may be that of the array.
        is_task = job.array_jobid and job.array_index is not None
        jobid = f"{job.array_jobid}_{job.array_index}" if is_task else job.jobid
        which = ("--starttime", f"uts{EARLIEST_TIME}", "--jobs", jobid)
        argv = [self._options.sacct, "--batch-script", "--allusers", *which]
        argv += self._cluster_option()
        try:
            answer = run(self._options, argv, limit=_MAX_SCRIPT_BYTES)
        except CommandOutputError:  # an oversized script must not prevent queries for the others
            return ""
        return _extract_script(answer.decode("utf-8", "replace"), job)

    def comments(self, jobids: Sequence[str]) -> dict[str, JobComment]:
        fields = ("JobIDRaw", "End", "AdminComment")
        times = ["--starttime", f"uts{EARLIEST_TIME}"]
        rows = self._query_rows(fields, ["--allocations", *times, "--jobs", ",".join(jobids)])
        return {
            row.values["JobIDRaw"]: JobComment(row.get("End", epoch), row.values["AdminComment"])
            for row in rows
            if isinstance(row, FieldReader)
        }

    def write_comment(self, jobid: str, text: str) -> None:
        """See CommentSource. scontrol refuses to change a job that has ended."""
        self._check_sacctmgr()
        name = self._options.slurm_cluster
        where = [f"jobid={jobid}", *([f"cluster={name}"] if name else [])]
        command = [self._options.sacctmgr, "--immediate", "update", "job", "where", *where]
        run(self._options, [*command, "set", f"AdminComment={text}"])

    def _check_sacctmgr(self) -> None:
        """Raise SourceError where sacctmgr would destroy a comment."""
        if self._keeps_case:
            return
        text = run(self._options, [self._options.sacctmgr, "--version"]).decode()
        # "do not force AdminComment/Comment/SystemComment to lower-case", commit 933bf55510.
        if (release := parse_release(text)) is None or release < (23, 2):
            raise SourceError(
                f"{text.strip()}: before 23.02, sacctmgr stores comments in lower case"
            )
        self._keeps_case = True

    def _query_jobs(self, selection: Sequence[str]) -> Iterator[ParsedJob]:
        options = ["--duplicates", "--noconvert", *selection, *self._expand_patterns()]
        rows = self._query_rows(self._supported_fields(), options)
        return self.add_exit_codes(
            sacct_records.parse_jobs(self.cluster, rows, self._site_accounting())
        )

    def _query_rows(
        self, fields: Sequence[str], options: Sequence[str]
    ) -> Iterator[FieldReader | QuarantinedRow]:
        delimiter = _random_delimiter()
        argv = [self._options.sacct, "--allusers", "--noheader", "--parsable"]
        argv += [f"--delimiter={delimiter}", f"--format={','.join(fields)}", *options]
        argv += self._cluster_option()
        output = run(self._options, argv, {"SLURM_TIME_FORMAT": "%s"})
        return sacct_records.parse_rows(output, fields, delimiter)

    def _expand_patterns(self) -> Sequence[str]:
        """For sacct and squeue: the option, and sacct's StdOut, were added in 24.05."""
        return ("--expand-patterns",) if "StdOut" in self._supported_fields() else ()

    def _cluster_option(self) -> list[str]:
        name = self._options.slurm_cluster
        return [f"--clusters={name}"] if name else []

    def _supported_fields(self) -> tuple[str, ...]:
        """The FIELDS that this release has; an unknown field would fail the call."""
        if not self._fields:
            answer = run(self._options, [self._options.sacct, "--helpformat"])
            supported = set(answer.decode("utf-8", "replace").split())
            if not supported >= sacct_records.REQUIRED_FIELDS:
                raise SourceError(f"{self._options.sacct} --helpformat does not list its fields")
            self._fields = tuple(field for field in sacct_records.FIELDS if field in supported)
        return self._fields

    def _site_accounting(self) -> SiteAccounting:
        """What figures mean here; what a command does not say is open, and asked again."""
        if self._site:
            return self._site
        version = self._output_of(self._options.sacct, "--version")
        shown = self._output_of(self._options.scontrol, "show", "config")
        site = site_accounting(version, shown)
        if version and shown:
            self._site = site
        return site if shown else site.without_configuration()

    def _output_of(self, *command: str) -> str:
        """What a command prints; "" if it fails, which must not keep jobs from being recorded."""
        key = " ".join(command[1:])
        try:
            text = run(self._options, command).decode("utf-8", "replace")
        except SchedulerError as error:
            self._once.warning(
                key, "%s: some figures are less certain: %s", sacct_records.SOURCE, error
            )
            return ""
        self._once.forget(key)
        return text


def _extract_script(output: str, job: SubmittedJob) -> str:
    """The text below the ruled line in sacct's output, "" for none."""
    _, rule, rest = output.partition(f"\n{_RULE}\n")
    # The other parts of a het job follow with the same script, and sometimes another task of an
    # array (seen with 22.05). Each script is followed by a newline.
    submission = re.escape(job.array_jobid or job.het_jobid or job.jobid)
    end = re.search(rf"\n(?:Batch Script for {submission}[_+]\S+\n{_RULE}\n|\Z)", rest)
    script = rest[: end.start()] if end else rest
    return script if rule and script.strip() != "NONE" else ""


def _random_delimiter() -> str:
    """An unpredictable delimiter, which nobody can put into a job's name."""
    return "\x1f" + secrets.token_urlsafe(3)


ACCOUNTING = AccountingModule(SacctOptions, Sacct)
