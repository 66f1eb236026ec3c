"""PBS' and Torque's accounting logs, one file per day, followed as they grow."""

import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, SchedulerError
from batchjob.runtime.values import one_of
from batchjob.schedulers import log_follower
from batchjob.schedulers.accounting import (
    AccountingModule,
    Batch,
    SourceError,
    UnfinishedJob,
    check_vanished,
    with_jobids_like,
)
from batchjob.schedulers.fields import FieldReader, RowError, quarantined_row, row_problem
from batchjob.schedulers.pbs.accounting.log_line import parse_line, zone_error
from batchjob.schedulers.pbs.accounting.log_replay import PbsLogReplay
from batchjob.schedulers.pbs.accounting.qstat import FINISHED, finished_record
from batchjob.schedulers.pbs.accounting.records import (
    ACCOUNTS,
    JOB_ID,
    RecordOptions,
    gpu_resources_of,
)
from batchjob.schedulers.pbs.qstat_jobs import query_qstat
from batchjob.schedulers.records import JobRecord, QuarantinedRow, merge_by_key

_SOURCE = "pbs_log"
log = logging.getLogger("batchjob.pbs")
_QUEUE_SECONDS = 3600  # how often the queue is asked
_DAY = re.compile(r"\d{8}", re.ASCII)
_LostJobs = tuple[Sequence[JobRecord], Sequence[str]]


def parse_time_zone(value: object) -> str:
    """A time zone such as Europe/Berlin; "": this machine's."""
    try:
        if value:
            ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {value!r}") from error
    return str(value)


@dataclass(frozen=True)
class PbsLogOptions(CommandOptions):
    # fmt: off
    path: str = option("/var/spool/pbs/server_priv/accounting",
        "Directory of the accounting logs.")
    time_zone: str = option("",
        "Time zone of the PBS server, such as Europe/Berlin; default: this machine's.",
        parse=parse_time_zone)
    account: str = option("account",
        "Attribute that contains the account, if any.", parse=one_of(*ACCOUNTS))

    gpu_resources: str = option("",
        "Resources of this site that count GPUs, separated by commas, besides ngpus, gpus, gpu and "
        "naccelerators.")
    qstat: str = option("qstat",
        "The command qstat, asked about running jobs whose end may not have been logged; empty: "
        "never.")
    # fmt: on


class PbsLog:
    """Follows the logs; what a record omits is taken from the database's unfinished jobs."""

    name = _SOURCE

    def __init__(
        self, cluster: str, options: PbsLogOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._options = options
        self._clock = clock
        self._zone = ZoneInfo(options.time_zone) if options.time_zone else None
        gpu_resources = gpu_resources_of(options.gpu_resources)
        self._record_options = RecordOptions(cluster, _SOURCE, options.account, gpu_resources)
        self._replay = PbsLogReplay(self._record_options)
        self._watermark = ""
        self._queue_time = 0.0  # when the queue was asked last
        self._queue_fails = False

    def check(self) -> tuple[str, ...]:
        return log_follower.check_readable(self._files, self._options.path)

    def watermark_at(self, since: int) -> str:
        return log_follower.watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        lost, unknown = self._ask_queue(unfinished)
        replay, known, files = self._replay, dict(unfinished), self._files()
        replay.unfinished, replay.files = known, files
        last_timestamp, ahead, deleted = _parse_state(watermark)
        if watermark != self._watermark:  # starts elsewhere, perhaps before the remembered runs
            replay.forget_lines(deleted)
        for lines, position, is_cut in log_follower.follow(files, watermark):
            records: list[JobRecord] = []
            quarantine: list[QuarantinedRow] = []
            was_ahead = ahead
            for index, raw in enumerate(lines, 1):
                text = raw.decode("utf-8", "backslashreplace")
                if is_cut and index == len(lines):  # its last value may be cut as well
                    quarantine.append(quarantined_row(_SOURCE, log_follower.CUT, text))
                    continue
                problems: list[str] = []
                try:
                    line = parse_line(text, self._zone, last_timestamp)
                    last_timestamp, problems = line.timestamp, line.row.parse_errors
                    ahead = zone_error(line, self._zone, ahead)
                    records += replay.records(line._replace(timestamp=line.timestamp - ahead))
                except Exception as error:
                    problems = [*problems, row_problem(error)]
                if problems:
                    quarantine.append(quarantined_row(_SOURCE, "; ".join(problems), text))
            if ahead != was_ahead:
                log.warning("stamps in %s are %+d s off; set time-zone", self._options.path, ahead)
            self._watermark = _add_state(position, last_timestamp, ahead, replay.deleted)
            covered = last_timestamp - ahead
            yield Batch(merge_by_key(records), tuple(quarantine), self._watermark, covered)
        ended = replay.unfinished_after_deletion(self._clock())
        # The queue was asked before the log was read: what has ended since is known by now.
        ended += [job for job in lost if known.get(job.jobid) == unfinished.get(job.jobid)]
        vanished = [jobid for jobid in unknown if known.get(jobid) == unfinished[jobid]]
        if ended or vanished:
            self._watermark = _add_state(self._watermark, last_timestamp, ahead, replay.deleted)
            covered = last_timestamp - ahead
            yield Batch(merge_by_key(ended), (), self._watermark, covered, tuple(vanished))

    def _ask_queue(self, unfinished: Mapping[str, UnfinishedJob]) -> _LostJobs:
        """The lost jobs; the queue is asked for them once an hour."""
        if not self._options.qstat or self._clock() - self._queue_time < _QUEUE_SECONDS:
            return (), ()
        self._queue_time = self._clock()
        try:
            found = self._find_lost_jobs(unfinished)
        except SchedulerError as error:
            if not self._queue_fails:
                log.warning("running jobs are not compared with PBS' queue: %s", error)
            self._queue_fails = True
            return (), ()
        self._queue_fails = False
        return found

    def _find_lost_jobs(self, unfinished: Mapping[str, UnfinishedJob]) -> _LostJobs:
        """The ends, by PBS' history, of running jobs that PBS no longer runs, and unknown job ids.

        Their end was not logged, or the log is lost. The history is queried only if there are any.
        Raises SchedulerError.
        """
        jobs = with_jobids_like(unfinished, JOB_ID)
        running = {jobid: job for jobid, job in jobs.items() if job.start_time}
        if not running:
            return (), ()
        queue = query_qstat(self._options, self._options.qstat)
        missing = {jobid: job for jobid, job in running.items() if not _is_live(queue.get(jobid))}
        if not missing:
            return (), ()
        history = self._query_history()
        ended, unknown = [], []
        for jobid, job in missing.items():
            attributes = history.get(jobid)
            if attributes == {}:  # its id stands twice: nothing is known of it
                continue
            if attributes is None or attributes.get("ctime") != str(job.submit_time):
                unknown.append(jobid)
            elif not _is_live(attributes):
                row = FieldReader(dict(attributes))
                with contextlib.suppress(RowError):
                    record = finished_record(self._record_options, jobid, row)
                    ended.append(record._replace(run=job.run))
        nothing_seen = not (queue or history)
        return ended, check_vanished(_SOURCE, tuple(unknown), running, nothing_seen=nothing_seen)

    def _query_history(self) -> Mapping[str, Mapping[str, str]]:
        """Jobs that have ended as well; none of a server that keeps no history, as by default."""
        try:
            return query_qstat(self._options, self._options.qstat, "-x")
        except SchedulerError as error:
            if "history" not in str(error):
                raise
            return {}

    def _files(self) -> list[Path]:
        """The logs by day; their names sort by day."""
        try:
            names = list(Path(self._options.path).iterdir())
        except OSError as error:
            raise SourceError(f"{self._options.path}: {error.strerror}") from error
        return sorted(path for path in names if _DAY.fullmatch(path.name))


def _parse_state(watermark: str) -> tuple[int, int, Mapping[str, int]]:
    """What a watermark says besides the position.

    The stamp of the line before it, which is needed in the hour that occurs twice, the seconds by
    which stamps are ahead, and the deletions that were logged.
    """
    try:
        found = log_follower.parse_watermark(watermark)
        ahead = int(found.get("zone_error", 0))
        return int(found.get("at", 0)), ahead, dict(found.get("deleted", {}))
    except (ValueError, TypeError):
        return 0, 0, {}


def _add_state(watermark: str, last_timestamp: int, ahead: int, deleted: Mapping[str, int]) -> str:
    parts = {"deleted": deleted, "zone_error": ahead}
    added = {name: part for name, part in parts.items() if part}
    return json.dumps(log_follower.parse_watermark(watermark) | {"at": last_timestamp} | added)


def _is_live(attributes: Mapping[str, str] | None) -> bool:
    return attributes is not None and attributes.get("job_state") not in FINISHED


ACCOUNTING = AccountingModule(PbsLogOptions, PbsLog)
