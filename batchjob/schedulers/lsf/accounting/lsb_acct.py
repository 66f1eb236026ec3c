"""LSF's accounting file lsb.acct, followed across its rotation to lsb.acct.1, .2 (1 is newest)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchjob.runtime.settings import option
from batchjob.schedulers import log_follower
from batchjob.schedulers import records as job_records
from batchjob.schedulers.accounting import AccountingModule, Batch, SourceError, UnfinishedJob
from batchjob.schedulers.fields import FieldReader, RowError, quarantined_row, row_problem
from batchjob.schedulers.lsf.accounting import event_records
from batchjob.schedulers.lsf.accounting import records as finish_records
from batchjob.schedulers.lsf.formats import lsf_hosts
from batchjob.schedulers.reallocation import held_beyond, not_known

_SOURCE = "lsb_acct"

ParseRecord = Callable[[str, Sequence[event_records.Word]], tuple[job_records.JobRecord, list[str]]]


@dataclass(frozen=True)
class EventFileOptions:
    path: str = option(
        "",
        "The file: $LSB_SHAREDIR/<cluster>/logdir/lsb.acct, or lsb.stream as lsb.params names it.",
    )


def build(cluster: str, options: EventFileOptions) -> "LsfLog":
    return LsfLog(_SOURCE, cluster, Path(options.path), "JOB_FINISH", job_from_finish)


class LsfLog:
    """Follows one of LSF's event files for records of one type."""

    def __init__(
        self, name: str, cluster: str, path: Path, record_type: str, parse: ParseRecord
    ) -> None:
        self.name = name
        self.cluster = cluster
        self._path = path
        self._record_type = record_type
        self._parse = parse

    def check(self) -> tuple[str, ...]:
        return log_follower.check_readable(self._files, str(self._path))

    def watermark_at(self, since: int) -> str:
        return log_follower.watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        covered = 0
        phases = parse_phases(log_follower.parse_watermark(watermark))
        chunks = log_follower.follow(self._files(), watermark, event_records.begins_record)
        for lines, state, is_cut in chunks:
            jobs: list[job_records.JobRecord] = []
            quarantine: list[job_records.QuarantinedRow] = []
            records = list(event_records.join_records(lines))
            if is_cut:  # its last value may be a part of one
                quarantine.append(quarantined_row(self.name, log_follower.CUT, records.pop()))
            for raw in records:
                line = event_records.split_words(raw)
                if not line or not line[0].quoted:
                    quarantine.append(quarantined_row(self.name, "not a record of LSF", raw))
                    continue
                try:
                    if line[0].text == RECORD_TYPE:
                        add_phase(phases, line)
                    if line[0].text != self._record_type:
                        continue
                    job, parse_errors = self._parse(self.cluster, line)
                except Exception as error:
                    quarantine.append(quarantined_row(self.name, row_problem(error), raw))
                    continue
                job = with_phases(job, phases)
                jobs.append(finish_records.with_known_submit_time(job, unfinished))
                covered = max(covered, int(job.end_time or 0))
                if parse_errors:
                    quarantine.append(quarantined_row(self.name, "; ".join(parse_errors), raw))
            if phases:
                state = json.dumps({**log_follower.parse_watermark(state), "phases": phases})
            yield Batch(job_records.merge_by_key(jobs), tuple(quarantine), state, covered)

    def _files(self) -> list[Path]:
        """The rotated files, oldest first, then the current one."""
        pattern = re.compile(re.escape(self._path.name) + r"\.(\d+)")
        try:
            rotated = [
                (int(match[1]), path)
                for path in self._path.parent.iterdir()
                if (match := pattern.fullmatch(path.name))
            ]
        except OSError as error:
            raise SourceError(f"{self._path.parent}: {error.strerror}") from error
        if not self._path.exists():
            raise SourceError(f"{self._path}: No such file")
        # lsb.acct.2 is older than lsb.acct.1; lsb.stream.<time> grows with time.
        rotated.sort(key=lambda pair: pair[0] if pair[0] > _MIN_EPOCH else -pair[0])
        return [*(path for _, path in rotated), self._path]


_MIN_EPOCH = 1_000_000_000  # a larger number is epoch seconds and not a rotation count


def job_from_finish(
    cluster: str, line: Sequence[event_records.Word]
) -> tuple[job_records.JobRecord, list[str]]:
    """The record of a JOB_FINISH, and the fields that could not be parsed."""
    values, hosts, slots, parse_error = event_records.parse_job_finish(line[2:])
    row = FieldReader({**values, "endTime": values.get("eventTime", "")})
    job = finish_records.ended_job(cluster, _SOURCE, row, hosts, slots)
    return job, [*row.parse_errors, *filter(None, [parse_error])]


RECORD_TYPE = "JOB_RESIZE"
_BEGIN_AT = 9  # after type, version, time, id, index, start, uid, user and kind
_MAX_JOBS = 10_000  # maximum number of jobs to remember
_LOGGED_WITHIN_SECONDS = 60  # of a change, or of a start

Phases = dict[str, list[tuple[int, int, dict[str, float]]]]
"""By job id, the phases that have ended: from when until when, and the CPUs on each host."""


def add_phase(phases: Phases, line: Sequence[event_records.Word]) -> None:
    """Add the phase that a JOB_RESIZE ends; raises RowError.

    IBM's lsb.acct(5) has four lists, each after its length: of the hosts before and of the change,
    and of the slots before and of the change. As in JOB_FINISH, slots count if there are any.
    """
    texts = [word.text for word in line]
    try:
        end, number, index = int(texts[2]), texts[3], int(texts[4])
        begin = int(texts[_BEGIN_AT])
        hosts, after = _counted(texts, _BEGIN_AT + 1)
        _, after = _counted(texts, after)
        slots, _ = _counted(texts, after) if after < len(texts) else ([], after)
        held = {share.node: share.cpus or 0 for share in lsf_hosts(slots or hosts)}
    except (ValueError, IndexError) as error:
        raise RowError(f"not a record of a resized job: {error}") from error
    jobid = finish_records.format_job_id(number, index)
    phases[jobid] = [*phases.pop(jobid, []), (begin, end, held)]
    if len(phases) > _MAX_JOBS:
        del phases[next(iter(phases))]


def _counted(texts: Sequence[str], at: int) -> tuple[Sequence[str], int]:
    """The list whose length is at an index, and the index after it; raises ValueError."""
    end = at + 1 + int(texts[at])
    if not at < end <= len(texts):
        raise ValueError(f"a list of {texts[at]} hosts does not fit into the record")
    return texts[at + 1 : end], end


def with_phases(job: job_records.JobRecord, phases: Phases) -> job_records.JobRecord:
    """The ended job with what its earlier phases held beyond its last allocation.

    What it held is not known if one of them was not read, or ended after the job; nor if it was
    suspended, which may have been in any of them.
    """
    found = [each for each in phases.pop(job.jobid, []) if each[1] >= (job.start_time or 0)]
    last_change = job.reallocations[-1].until_time if job.reallocations else 0.0
    job = job._replace(reallocations=())
    if not (found or last_change) or job.allocated_cpus is None or job.start_time is None:
        return job
    ends = [job.start_time, *(end for _, end, _ in found)]
    follow = all(begin <= end for (begin, *_), end in zip(found, ends, strict=False))
    latest = (job.end_time or 0.0) + _LOGGED_WITHIN_SECONDS
    is_last = last_change - _LOGGED_WITHIN_SECONDS <= ends[-1] <= latest
    is_suspended = (job.suspended_seconds or 0) > _LOGGED_WITHIN_SECONDS
    if not found or not follow or not is_last or is_suspended:
        return not_known(job)
    changes: list[job_records.Reallocation] = []
    following = job.allocated_cpus
    for _, end, held in reversed(found):
        cpus = sum(held.values())
        changes.insert(0, job_records.Reallocation(end, cpus - following))
        following = cpus
        shares = (job_records.NodeShare(host, cpus) for host, cpus in held.items())
        job = job._replace(reallocations=(changes[0],), allocated_nodes=None)
        job = job_records.with_returned_nodes(shares, job)
    job = job._replace(reallocations=tuple(changes), allocated_nodes=len(job.nodes) or None)
    return job._replace(resized_cpu_seconds=held_beyond(job)["resized_cpu_seconds"])


def parse_phases(state: Mapping[str, object]) -> Phases:
    """The phases in a watermark; those of other releases are left out."""
    found = state.get("phases")
    return {
        str(jobid): [(int(begin), int(end), dict(held)) for begin, end, held in ended]
        for jobid, ended in (found.items() if isinstance(found, dict) else ())
        if all(isinstance(phase, list) and len(phase) == 3 for phase in ended)
    }


ACCOUNTING = AccountingModule(EventFileOptions, build)
