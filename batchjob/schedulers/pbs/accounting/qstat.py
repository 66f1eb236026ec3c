"""PBS jobs and their history by `qstat -x -t -f -F json`.

Traps (OpenPBS' source and issues): a value that looks like JSON is printed as JSON, so that a job
named 1e5 or true is a number or a boolean; before 2024 some characters are not escaped and the
whole answer is no JSON, for which `qstat -f` without -F is read instead. Times are text in the
client's zone, which is UTC here.
"""

import calendar
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, run
from batchjob.runtime.values import boolean, duration, one_of, text
from batchjob.schedulers.accounting import (
    AccountingModule,
    Batch,
    SourceError,
    Unfinished,
    missing,
    outlasted,
    own,
    vanished,
)
from batchjob.schedulers.fields import FieldReader, RowError, epoch, integer, quarantined
from batchjob.schedulers.pbs.accounting.records import (
    ACCOUNTS,
    JOB_ID,
    NOT_LOGGED,
    Incarnation,
    end_state,
    job_id,
    job_record,
)
from batchjob.schedulers.pbs.states import PBS
from batchjob.schedulers.records import JobRecord, Quarantined, folded
from batchjob.schedulers.states import JobState

SOURCE = "qstat"
_BATCH = 2000

# qstat's names for what the accounting log calls otherwise.
_NAMES = {
    "Job_Name": "jobname", "euser": "user", "egroup": "group", "Account_Name": "account",
    "stime": "start", "depend": "depend",
}  # fmt: skip
_TIMES = ("ctime", "estimated.start_time", "etime", "qtime", "start", "end", "obittime", "mtime")


@dataclass(frozen=True)
class QstatOptions(CommandOptions):
    """PBS' jobs by qstat."""

    qstat: str = option("qstat", "The command qstat, or its path.", parse=text)
    account: str = option(
        "account", "Attribute that contains the account, if any.", parse=one_of(*ACCOUNTS)
    )
    history: float = option(
        14 * 86400.0,
        "How long PBS remembers ended jobs (the server's job_history_duration).",
        parse=duration,
    )
    trust_missing: bool = option(
        False, "Accept an answer in which most unfinished jobs are missing.", parse=boolean
    )


def build(cluster: str, options: QstatOptions) -> "Qstat":
    """The source for one cluster."""
    return Qstat(cluster, options)


class Qstat:
    """Reads all jobs that the server knows, each time."""

    name = SOURCE

    def __init__(
        self, cluster: str, options: QstatOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._options = options
        self._clock = clock

    def check(self) -> tuple[str, ...]:
        """See Source."""
        try:
            shown = self._run("-B", "-f").decode("utf-8", "replace")
        except SchedulerError as error:
            return (f"cannot ask the PBS server: {error}",)
        settings = {line.replace(" ", "").lower() for line in shown.splitlines()}
        lines = []
        if "query_other_jobs=true" not in settings:
            lines.append(
                "PBS shows each user only its own jobs: "
                "`qmgr -c 'set server query_other_jobs = True'`, or make us an operator"
            )
        if "job_history_enable=true" not in settings:
            lines.append(
                "PBS forgets a job when it ends: `qmgr -c 'set server job_history_enable = True'`"
                ", or read the accounting logs (pbs_log)"
            )
        return tuple(lines)

    def watermark_at(self, since: int) -> str:
        """qstat always tells all it knows."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        now = int(self._clock())
        unfinished = own(unfinished, JOB_ID)
        records: list[JobRecord] = []
        bad: list[Quarantined] = []
        known: set[tuple[str, int]] = set()
        for jobid, attributes in self._jobs().items():
            row = FieldReader(attributes)
            try:
                if job_id(jobid).parent:
                    continue
                record = self._record(jobid, row)
            except RowError as error:
                bad.append(quarantined(SOURCE, str(error), json.dumps({jobid: attributes})))
                continue
            if row.complaints:
                raw = json.dumps({jobid: attributes})
                bad.append(quarantined(SOURCE, "; ".join(row.complaints), raw))
            known.add((record.jobid, record.submit_time))
            records += (*_run_before(record, row, unfinished.get(record.jobid)), record)
        forgotten = outlasted(SOURCE, watermark, now, self._options.history)
        gone = vanished(
            SOURCE,
            missing(unfinished, known),
            unfinished,
            nothing_seen=not known,
            trust=self._options.trust_missing or forgotten,
        )
        for at in range(0, len(records), _BATCH):
            yield Batch(folded(records[at : at + _BATCH]), (), watermark, now)
        yield Batch((), tuple(bad), str(now), now, gone)

    def _run(self, *arguments: str) -> bytes:
        return run(self._options, [self._options.qstat, *arguments]).stdout

    def _jobs(self) -> dict[str, dict[str, str]]:
        output = self._run("-x", "-t", "-f", "-F", "json").decode("utf-8", "backslashreplace")
        try:
            return json_jobs(output)
        except ValueError:
            plain = self._run("-x", "-t", "-f").decode("utf-8", "backslashreplace")
            return text_jobs(plain)

    def _record(self, jobid: str, row: FieldReader) -> JobRecord:
        letter = row.text("job_state")
        state = PBS.get(letter, JobState.UNKNOWN)
        runs = row.get("run_count", integer) or 0
        if letter in ("F", "X", "C"):
            # A deleted sub-job that never ran has its array's start time, and exit status 1.
            ran = "exec_host" in row.values
            state = end_state(row) if ran else JobState.CANCELLED
            row.values = ended_values(row.values, ran=ran)
        else:
            row.values = {k: v for k, v in row.values.items() if k != "Exit_status"}
            if state is JobState.PENDING:
                row.values = {k: v for k, v in row.values.items() if k != "start"}
                runs += 1  # the run that it waits for
        which = Incarnation(jobid, max(1, runs), state, letter)
        record = job_record(self.cluster, SOURCE, self._options.account, which, row)
        return record._replace(
            reason=row.text("comment") if state is JobState.PENDING else record.reason,
            submit_line=f"qsub {row.text('Submit_arguments')}".strip()
            if row.text("Submit_arguments")
            else "",
            work_dir=row.text("Variable_List.PBS_O_WORKDIR"),
            stdout_path=row.text("Output_Path"),
        )


def _run_before(
    record: JobRecord, row: FieldReader, known: Unfinished | None
) -> tuple[JobRecord, ...]:
    """The run that was seen last, where the job was rerun since: qstat shows the newest alone.

    It ended before the next one began, or before the server last changed the job.
    """
    if known is None or known.submit_time != record.submit_time or known.run >= record.run:
        return ()
    return (
        JobRecord(
            record.cluster, record.jobid, known.submit_time, JobState.REQUEUED, "", SOURCE,
            known.run, end_time=record.start_time or row.get("mtime", epoch), reason=NOT_LOGGED,
        ),
    )  # fmt: skip


def ended_values(values: Mapping[str, str], *, ran: bool) -> dict[str, str]:
    """The end is when the server put the job into its history, or else when it heard of it."""
    end = values.get("history_timestamp") or values.get("obittime") or values.get("mtime", "")
    dropped = () if ran else ("start", "Exit_status")
    return {**{k: v for k, v in values.items() if k not in dropped}, "end": end}


def json_jobs(output: str) -> dict[str, dict[str, str]]:
    """Attributes by job id, flat, all text; raises ValueError if it is no JSON.

    Numbers stay as they are written: 007 and 1e5 are names too.
    """
    document = json.loads(output, strict=False, parse_int=str, parse_float=str, parse_constant=str)
    jobs = document.get("Jobs", {}) if isinstance(document, dict) else None
    if not isinstance(jobs, dict):
        raise SourceError("qstat: expected an object with Jobs")
    return {jobid: _flat(job) for jobid, job in jobs.items() if isinstance(job, dict)}


def _flat(job: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in job.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": _scalar(each) for inner, each in value.items()}
        else:
            flat[_NAMES.get(name, name)] = _scalar(value)
    return _with_epochs(flat)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)  # true, null, and names that look like a list


def text_jobs(output: str) -> dict[str, dict[str, str]]:
    """The same from `qstat -f`: `Job Id: X`, `    name = value`, and a tab before what goes on."""
    jobs: dict[str, dict[str, str]] = {}
    job: dict[str, str] = {}
    name = ""
    for line in output.split("\n"):
        if line.startswith("Job Id: "):
            job = jobs.setdefault(line.removeprefix("Job Id: ").strip(), {})
            name = ""
        elif line.startswith("\t") and name:
            job[name] += line[1:]
        elif line.startswith("    ") and " = " in line:
            raw, _, value = line.strip().partition(" = ")
            name = _NAMES.get(raw, raw)
            job[name] = value
    return {jobid: _with_epochs(_with_variables(job)) for jobid, job in jobs.items()}


def _with_variables(job: dict[str, str]) -> dict[str, str]:
    """PBS_O_WORKDIR out of Variable_List; the rest of it is the user's own affair."""
    for pair in job.pop("Variable_List", "").split(","):
        if pair.startswith("PBS_O_WORKDIR="):
            job["Variable_List.PBS_O_WORKDIR"] = pair.partition("=")[2]
    return job


def _with_epochs(job: dict[str, str]) -> dict[str, str]:
    owner = {"user": job.get("Job_Owner", "").partition("@")[0]}  # until it runs as someone
    times = {name: _epoch(job[name]) for name in _TIMES if name in job}
    return owner | job | times


def _epoch(text: str) -> str:
    """Epoch seconds of `Fri Nov 20 11:45:47 2026`, UTC; what is something else stays."""
    try:
        return str(calendar.timegm(time.strptime(text, "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return text


ACCOUNTING = AccountingModule(QstatOptions, build)
