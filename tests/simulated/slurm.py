"""A Slurm in memory: a controller, an accounting database with delayed records, and the commands.

`run` replaces `batchjob.runtime.subprocesses.run`: it answers `sacct` and `squeue` of 22.05 with
the state at `now`. As with slurmdbd, jobs are selected by the time of their end, or by id; a job is
listed after its record has arrived, and as ended after its end has.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from batchjob.runtime.subprocesses import CommandFailedError
from batchjob.schedulers.slurm.accounting.sacct_records import FIELDS
from batchjob.schedulers.slurm.slurmrestd import RestError

_BUCKET = 3600
NEVER = 1 << 40


class StepTimes(NamedTuple):
    """A step that ends before its job, or that outlives the part of it in which it began."""

    start: int
    end: int
    cpu_seconds: int
    memory_bytes: int
    name: str = ""  # "": batch, 0, 1 ... in their order
    exit_status: int = 0


@dataclass(slots=True)
class SlurmJob:
    """One run of a job, from its submission to its end."""

    jobid: int
    submit: int
    start: int | None  # None: it ends without having started
    end: int
    state: str = "COMPLETED"
    display: str = ""  # 10_3, 25+1; "" is the id itself
    user: str = "alice"
    account: str = "physics"
    name: str = "train"
    cpus: int = 4
    nodes: str = "n1"
    known_at: int = 0  # when accounting gets its submission
    ended_at: int = 0  # when accounting gets its end
    steps: int = 0  # as long as the job; of one CPU minute and 1 MiB each
    step_times: tuple["StepTimes", ...] = ()  # those of other lengths
    dbindex: int = 0
    exit_status: int = 0
    original_submit: int = 0  # of a job that was resized at `submit`
    suspended: tuple[int, int] = (NEVER, NEVER)  # start and end
    recorded_cpus: int = 0  # of its record, if it held others: see held_before_resize()
    left_at: int = 0  # when the controller ends it, if that is not its end

    def steps_since(self, begin: int) -> list[tuple[str, StepTimes]]:
        """The steps in the answer of a window: slurmdbd omits those that ended before it."""
        if self.start is None:
            return []
        times = [StepTimes(self.start, self.end, 60, 1 << 20)] * self.steps + [*self.step_times]
        names = ("batch", *map(str, range(len(times))))
        named = [(step.name or name, step) for name, step in zip(names, times, strict=False)]
        return [step for step in named if step[1].end >= begin]

    @property
    def suspended_seconds(self) -> int:
        """Until its end."""
        return max(0, min(self.end, self.suspended[1]) - self.suspended[0])

    @property
    def key(self) -> tuple[str, int]:
        return str(self.jobid), self.submit


class SimulatedSlurm:
    """Jobs, and the output of the commands."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.clients_ahead = 0  # seconds by which the clock of sacct and slurmrestd is ahead
        self.dbd_down = self.ctld_down = False
        self.late: tuple[int, int] = (0, 0)  # accounting has nothing new from the first to the last
        self.exact_exits = False  # as since 25.11
        self.configuration = "JobAcctGatherType       = jobacct_gather/cgroup\n"
        self.calls: list[Sequence[str]] = []
        self.answered = 0  # rows of jobs
        self.queued: dict[tuple[str, int], SlurmJob] = {}
        self.waiting: list[SlurmJob] = []
        self.by_end: dict[int, list[SlurmJob]] = defaultdict(list)
        self.by_id: dict[str, list[SlurmJob]] = defaultdict(list)
        self._jobs = 0

    def add(self, job: SlurmJob) -> SlurmJob:
        """Add a job with all its times; it is listed from its submission on."""
        self._jobs += 1
        job.dbindex = self._jobs
        job.known_at = job.known_at or job.submit
        job.ended_at = job.ended_at or job.end
        self.by_end[job.end // _BUCKET].append(job)
        self.by_id[str(job.jobid)].append(job)
        self.waiting.append(job)
        return job

    def forget(self, before: int) -> None:
        """Slurmdbd's purge of jobs that ended before a time."""
        for bucket in [each for each in self.by_end if (each + 1) * _BUCKET < before]:
            for job in self.by_end.pop(bucket):
                self.by_id[str(job.jobid)].remove(job)

    @property
    def accounted(self) -> int:
        """The time of which accounting has the state."""
        begin, end = self.late
        return begin if begin <= self.now < end else self.now

    def run(
        self, options: object, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> bytes:
        """The output of a command."""
        del options, variables
        program, arguments = argv[0], list(argv[1:])
        if arguments == ["--helpformat"]:
            return " ".join(FIELDS).encode()
        if arguments == ["--version"]:
            return b"slurm 26.05.3\n" if self.exact_exits else b"slurm-wlm 22.05.8\n"
        if arguments == ["show", "config"] and not self.ctld_down:
            return self.configuration.encode()
        self.calls.append(argv)
        if self.dbd_down if program == "sacct" else self.ctld_down:
            printed = f"{program}: error: Connection refused".encode()
            raise CommandFailedError(f"{program}: exit status 1: Connection refused", printed)
        text = self._squeue(arguments) if program == "squeue" else self.sacct(arguments)
        return "".join(text).encode()

    def get(self, daemon: str, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """What slurmrestd answers."""
        query = query or {}
        self.calls.append((daemon, path, *query))
        if self.ctld_down if daemon == "slurm" else self.dbd_down:
            raise RestError("http://slurmrestd: Connection refused")
        if path == "conf":
            kind = dict(map(str.split, self.configuration.replace("=", " ").splitlines()))
            return {"errors": [], "slurm_conf": kind}
        if path == "diag":
            counts = {"jobs_running": len(list(self._in_queue())), "server_thread_count": 1}
            return {"errors": [], "statistics": counts}
        assert path == "jobs"
        if daemon == "slurm":
            return {"errors": [], "jobs": list(map(self._queue_document, self._in_queue()))}
        if "step" in query:
            found = self._of_ids(query["step"], query.get("end_time"))
        else:
            times = (int(query[name].removeprefix("uts")) for name in ("start_time", "end_time"))
            found = self._ended(*times, ",".join(query["state"]))
        known = [job for job in found if min(job.known_at, job.ended_at) <= self.accounted]
        self.answered += len(known)
        begin = int(query["start_time"].removeprefix("uts"))
        jobs = [_accounting_document(job, self.accounted, begin) for job in known]
        return {"errors": [], "jobs": jobs}

    def _queue_document(self, job: SlurmJob) -> dict[str, Any]:
        self.answered += 1
        values = _queue_values(job, self.now)
        tres = {"tres_alloc_str": values["tres-alloc"], "tres_req_str": values["tres-alloc"]}
        return {
            "job_id": job.jobid, "user_name": job.user, "user_id": 1001, "group_name": "users",
            "account": job.account, "partition": "cpu", "qos": "normal", "name": job.name,
            "job_state": [values["State"]], "state_reason": values["Reason"],
            "submit_time": job.original_submit or job.submit, "eligible_time": job.submit,
            "resize_time": job.submit if job.original_submit else 0,
            "start_time": int(values["StartTime"]), "end_time": int(values["EndTime"]),
            "time_limit": 1440, "nodes": values["NodeList"], **tres,
            "current_working_directory": "/home/alice", **_families(job, "array_", "het_"),
            **_suspension(job, self.now),
        }  # fmt: skip

    def _in_queue(self) -> Iterable[SlurmJob]:
        """Jobs that the controller knows."""
        arrived = [job for job in self.waiting if job.submit <= self.now]
        if arrived:
            self.queued |= {job.key: job for job in arrived}
            self.waiting = [job for job in self.waiting if job.submit > self.now]
        gone = [key for key, job in self.queued.items() if (job.left_at or job.end) <= self.now]
        for key in gone:
            del self.queued[key]
        return self.queued.values()

    def _ended(self, begin: int, end: int, states: str) -> list[SlurmJob]:
        """Jobs that ended in a time window."""
        assert not {"PENDING", "RUNNING", "SUSPENDED"} & set(states.split(","))
        buckets = range(begin // _BUCKET, min(end, self.now + 90_000) // _BUCKET + 1)
        return [
            job
            for bucket in buckets
            for job in self.by_end.get(bucket, ())
            if begin <= job.end <= end and job.ended_at <= self.accounted
        ]

    def _of_ids(self, jobids: Sequence[str], end: str | None) -> list[SlurmJob]:
        """Jobs by id, submitted before a time, which is that of the client by default."""
        before = int(end.removeprefix("uts")) if end else self.now + self.clients_ahead + 1
        return [job for each in jobids for job in self.by_id[each] if job.submit < before]

    def _recently_ended(self) -> list[SlurmJob]:
        """Jobs that the controller remembers: MinJobAge is 300 s."""
        buckets = ((self.now - 300) // _BUCKET, self.now // _BUCKET)
        return [
            job
            for bucket in sorted(set(buckets))
            for job in self.by_end.get(bucket, ())
            if self.now - 300 < job.end <= self.now
            and (job.left_at or job.end) <= self.now
            and job.state not in ("RESIZING", "REQUEUED")
        ]

    def _squeue(self, arguments: Sequence[str]) -> Iterator[str]:
        (format_option,) = (
            w.removeprefix("--Format=") for w in arguments if w.startswith("--Format=")
        )
        fields = [field.partition(":0") for field in format_option.split(",")]
        delimiter = fields[0][2]
        ended = self._recently_ended() if "--states=all" in arguments else []
        for job in (*self._in_queue(), *ended):
            self.answered += 1
            values = _queue_values(job, self.now)
            if job in ended:
                values |= {"State": job.state, "exit_code": str(job.exit_status << 8)}
            yield "".join(values.get(name, "N/A") + delimiter for name, _, _ in fields) + "\n"

    def sacct(self, arguments: list[str]) -> Iterator[str]:
        options = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
        plain = [word for word in arguments if "=" not in word]
        for name, value in zip(plain, [*plain[1:], ""], strict=True):
            if name.startswith("--"):
                options[name[2:]] = value
        assert "--duplicates" in plain  # else of several runs, or jobs of one id, only the newest
        begin = int(options["starttime"].removeprefix("uts"))
        if "jobs" in options:
            found = self._of_ids(options["jobs"].split(","), options.get("endtime"))
        else:
            end = int(options["endtime"].removeprefix("uts"))
            found = self._ended(begin, end, options["state"])
        allocations_only = "--allocations" in plain
        fields, delimiter = options["format"].split(","), options["delimiter"]
        for job in found:
            if job.known_at > self.accounted and job.ended_at > self.accounted:
                continue
            self.answered += 1
            steps = [] if allocations_only else job.steps_since(begin)
            for values in _accounting_values(job, self.accounted, steps, self.exact_exits):
                yield "".join(values.get(name, "") + delimiter for name in fields) + "\n"


def _queue_values(job: SlurmJob, now: int) -> dict[str, str]:
    started = job.start is not None and job.start <= now
    tres = f"cpu={job.cpus},mem=4G,node=1"
    stopped, resumed = job.suspended
    state = "PENDING" if not started else "SUSPENDED" if stopped <= now < resumed else "RUNNING"
    used = now - (job.start or now) - max(0, min(now, resumed) - stopped) if started else 0
    return {
        "JobID": str(job.jobid), "JobArrayID": job.display or str(job.jobid),
        "UserName": job.user, "UserID": "1001", "GroupName": "users", "Account": job.account,
        "Partition": "cpu", "QOS": "normal", "State": state,
        "TimeUsed": f"{used // 3600}:{used // 60 % 60:02}:{used % 60:02}",
        "Reason": "None" if started else "Priority",
        "SubmitTime": str(job.original_submit or job.submit),
        "ResizeTime": "INVALID" if job.original_submit else "N/A",
        "EligibleTime": str(job.submit), "StartTime": str(job.start if started else now + 600),
        "EndTime": str(now + 3600), "TimeLimit": "1-00:00:00", "tres-alloc": tres,
        "NodeList": job.nodes if started else "", "Name": job.name, "WorkDir": "/home/alice",
        "Dependency": "(null)", "Reservation": "(null)", "SLUID": f"s{job.submit}",
    }  # fmt: skip


def _suspension(job: SlurmJob, now: int) -> dict[str, int]:
    stopped, resumed = job.suspended
    if now < stopped or job.start is None:
        return {"suspend_time": 0, "pre_sus_time": 0}
    changed = resumed if now >= resumed else stopped
    return {"suspend_time": changed, "pre_sus_time": stopped - job.start}


def _accounting_values(
    job: SlurmJob, now: int, steps: Sequence[tuple[str, StepTimes]], exact_exits: bool
) -> Iterator[dict[str, str]]:
    ended = job.ended_at <= now
    started = job.start is not None and (ended or job.start <= now)
    seconds = (job.end - job.start - job.suspended_seconds) if ended and job.start else 0
    tres = f"cpu={job.cpus},mem=4G,node=1"
    recorded = f"cpu={job.recorded_cpus if ended and job.recorded_cpus else job.cpus},mem=4G,node=1"
    state = job.state if ended else "RUNNING" if started else "PENDING"
    limit = 256 if exact_exits else 128
    base = {
        "JobIDRaw": str(job.jobid), "JobID": job.display or str(job.jobid),
        "DBIndex": str(job.dbindex), "State": state, "User": job.user, "UID": "1001",
        "Group": "users", "Account": job.account, "Partition": "cpu", "QOS": "normal",
        "Submit": str(job.submit), "Eligible": str(job.submit),
        "Start": str(job.start) if started else "Unknown",
        "End": str(job.end) if ended else "Unknown",
        "ElapsedRaw": str(seconds if ended else now - (job.start or now)), "TimelimitRaw": "1440",
        "Suspended": _clock(job.suspended_seconds if ended else 0),
        "ReqTRES": tres, "AllocTRES": recorded if started else "",
        "ExitCode": f"{job.exit_status % limit}:0",
        "DerivedExitCode": f"{_derived_status(job)}:0",
        "NodeList": job.nodes if started else "None assigned", "JobName": job.name,
        "WorkDir": "/home/alice", "Reason": "None", "TotalCPU": "00:00:00",
        "SubmitLine": f"sbatch {job.name}.sh",
    }  # fmt: skip
    steps = [each for each in steps if started and (ended or each[1].start <= now)]
    cpu_seconds = sum(step.cpu_seconds for _, step in steps if _has_ended(job, step, now))
    yield base | {"TotalCPU": _clock(cpu_seconds)}
    for name, step in steps:
        has_ended = _has_ended(job, step, now)
        status = job.exit_status if name == "batch" else step.exit_status
        used = f"cpu=00:01:00,mem={step.memory_bytes},fs/disk=4096"
        yield base | {
            "JobIDRaw": f"{job.jobid}.{name}", "JobID": f"{job.jobid}.{name}", "User": "",
            "Start": str(step.start), "End": str(step.end) if has_ended else "Unknown",
            "JobName": name, "TotalCPU": _clock(step.cpu_seconds),
            "UserCPU": _clock(step.cpu_seconds * 5 // 6),
            "SystemCPU": _clock(-(-step.cpu_seconds // 6)),
            "MaxRSS": "1024K", "NTasks": "1", "AllocTRES": tres,
            "TRESUsageInTot": used if has_ended else "", "ExitCode": f"{status % limit}:0",
            "State": _step_state(job, name, step, now),
        }  # fmt: skip


def _has_ended(job: SlurmJob, step: StepTimes, now: int) -> bool:
    """Steps outlive a part of a resized job in its record."""
    return step.end <= now or (job.ended_at <= now and job.state != "RESIZING")


def _step_state(job: SlurmJob, name: str, step: StepTimes, now: int) -> str:
    if not _has_ended(job, step, now):
        return "RUNNING"
    if name == "batch" and job.state != "RESIZING":
        return job.state
    return "FAILED" if step.exit_status else "COMPLETED"


def _derived_status(job: SlurmJob) -> int:
    return max((step.exit_status for step in job.step_times if step.name != "batch"), default=0)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _families(job: SlurmJob, array: str, het: str) -> dict[str, Any]:
    """The fields of slurmrestd for the array or het job that a job belongs to."""
    for mark, names in (("_", (f"{array}job_id", f"{array}task_id")),
                        ("+", (f"{het}job_id", f"{het}job_offset"))):  # fmt: skip
        first, found, index = job.display.partition(mark)
        if found:
            return {names[0]: int(first), names[1]: int(index)}
    return {}


def _accounting_document(job: SlurmJob, now: int, begin: int) -> dict[str, Any]:
    ended = job.ended_at <= now
    started = job.start is not None and (ended or job.start <= now)
    seconds = (job.end - job.start - job.suspended_seconds) if ended and job.start else 0
    state = job.state if ended else "RUNNING" if started else "PENDING"
    tres = _tres(job.cpus)
    recorded = _tres(job.recorded_cpus) if ended and job.recorded_cpus else tres
    steps = [
        {
            "step": {"id": f"{job.jobid}.{name}", "name": name},
            "time": {"start": step.start, "end": step.end if _has_ended(job, step, now) else 0,
                     "elapsed": step.end - step.start,
                     "total": {"seconds": step.cpu_seconds, "microseconds": 0}},
            "state": [_step_state(job, name, step, now)],
            "nodes": {"count": 1, "range": job.nodes}, "tasks": {"count": 1},
            "tres": {"allocated": tres, "requested": {"total": [
                {"type": "mem", "name": "", "count": step.memory_bytes}]
                if _has_ended(job, step, now) else []}},
            "exit_code": _exit(job.exit_status if name == "batch" else step.exit_status),
        }
        for name, step in (job.steps_since(begin) if started else ())
        if ended or step.start <= now
    ]  # fmt: skip
    cpu_seconds = sum(each["time"]["total"]["seconds"] for each in steps)
    families = _families(job, "", "")
    group = "het" if "+" in job.display else "array"
    return {
        "job_id": job.jobid, "user": job.user, "group": "users", "account": job.account,
        "partition": "cpu", "qos": "normal", "name": job.name,
        "nodes": job.nodes if started else "",
        "state": {"current": [state], "reason": "None"}, group: families,
        "time": {"submission": job.submit, "eligible": job.submit, "limit": 1440,
                 "start": job.start if started else 0, "end": job.end if ended else 0,
                 "elapsed": seconds, "total": {"seconds": cpu_seconds, "microseconds": 0},
                 "suspended": job.suspended_seconds if ended else 0},
        "tres": {"requested": tres, "allocated": recorded if started else []},
        "exit_code": _exit(job.exit_status), "derived_exit_code": _exit(_derived_status(job)),
        "working_directory": "/home/alice",
        "steps": steps,
    }  # fmt: skip


def _tres(cpus: int) -> list[dict[str, Any]]:
    counts = {"cpu": cpus, "mem": 4096, "node": 1}
    return [{"type": kind, "name": "", "count": count} for kind, count in counts.items()]


def _exit(status: int) -> dict[str, Any]:
    """As since v0.0.40."""
    number = {"set": True, "infinite": False, "number": status}
    return {"return_code": number, "status": ["ERROR" if status else "SUCCESS"]}


def requeued(job: SlurmJob, submit: int, start: int, end: int) -> SlurmJob:
    """The next run of a job, which keeps its id."""
    return replace(job, submit=submit, start=start, end=end, known_at=0, ended_at=0)
