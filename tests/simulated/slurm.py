"""A Slurm in memory: a controller, an accounting that hears of things later, and their commands.

`run` stands for `batchjob.call.run`: it answers `sacct` and `squeue` as those of 22.05 do, by the
state of things at `now`. slurmdbd's rules: jobs by window of their end, or by id; a job is known
there when its record has arrived, and as ended when its end has.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from batchjob.runtime.subprocesses import CommandFailedError, CompletedCommand
from batchjob.schedulers.slurm.accounting.sacct_records import FIELDS

_BUCKET = 3600
NEVER = 1 << 40


@dataclass(slots=True)
class SlurmJob:
    """An incarnation of a job, from its submission to its end."""

    jobid: int
    submit: int
    start: int | None  # None: it ends without having run
    end: int
    state: str = "COMPLETED"
    display: str = ""  # 10_3, 25+1; "" is the id itself
    user: str = "alice"
    account: str = "physics"
    name: str = "train"
    cpus: int = 4
    nodes: str = "n1"
    known_at: int = 0  # when accounting has its submission
    ended_at: int = 0  # when accounting has its end
    steps: int = 0
    dbindex: int = 0
    exit_code: str = "0:0"

    @property
    def key(self) -> tuple[str, int]:
        return str(self.jobid), self.submit


class SimulatedSlurm:
    """Jobs, and what the commands say of them."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.dbd_down = self.ctld_down = False
        self.calls: list[Sequence[str]] = []
        self.answered = 0  # rows of jobs
        self.queued: dict[tuple[str, int], SlurmJob] = {}
        self.waiting: list[SlurmJob] = []
        self._by_end: dict[int, list[SlurmJob]] = defaultdict(list)
        self._by_id: dict[str, list[SlurmJob]] = defaultdict(list)
        self._jobs = 0

    def add(self, job: SlurmJob) -> SlurmJob:
        """A job with its whole life; it shows when its time comes."""
        self._jobs += 1
        job.dbindex = self._jobs
        job.known_at = job.known_at or job.submit
        job.ended_at = job.ended_at or job.end
        self._by_end[job.end // _BUCKET].append(job)
        self._by_id[str(job.jobid)].append(job)
        self.waiting.append(job)
        return job

    def forget(self, before: int) -> None:
        """Slurmdbd's purge of jobs that ended before a time."""
        for bucket in [each for each in self._by_end if (each + 1) * _BUCKET < before]:
            for job in self._by_end.pop(bucket):
                self._by_id[str(job.jobid)].remove(job)

    def run(
        self, options: object, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> CompletedCommand:
        """What a command prints."""
        del options, variables
        program, words = argv[0], list(argv[1:])
        if words == ["--helpformat"]:
            return CompletedCommand(" ".join(FIELDS).encode(), b"", 0.0)
        self.calls.append(argv)
        if self.ctld_down if program == "squeue" else self.dbd_down:
            failed = CompletedCommand(b"", f"{program}: error: Connection refused".encode(), 0.0)
            raise CommandFailedError(f"{program}: exit status 1: Connection refused", 1, failed)
        text = self._squeue(words) if program == "squeue" else self._sacct(words)
        return CompletedCommand("".join(text).encode(), b"", 0.0)

    def _squeue(self, words: Sequence[str]) -> Iterator[str]:
        (given,) = (w.removeprefix("--Format=") for w in words if w.startswith("--Format="))
        fields = [field.partition(":0") for field in given.split(",")]
        delimiter = fields[0][2]
        arrived = [job for job in self.waiting if job.submit <= self.now]
        if arrived:
            self.queued |= {job.key: job for job in arrived}
            self.waiting = [job for job in self.waiting if job.submit > self.now]
        for key in [key for key, job in self.queued.items() if job.end <= self.now]:
            del self.queued[key]
        for job in self.queued.values():
            self.answered += 1
            values = _queue_values(job, self.now)
            yield "".join(values.get(name, "N/A") + delimiter for name, _, _ in fields) + "\n"

    def _sacct(self, words: list[str]) -> Iterator[str]:
        options = dict(word[2:].split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        for name, value in zip(plain, [*plain[1:], ""], strict=True):
            if name.startswith("--"):
                options[name[2:]] = value
        begin = int(options["starttime"].removeprefix("uts"))
        if "jobs" in options:
            found = [job for each in options["jobs"].split(",") for job in self._by_id[each]]
        else:
            end = int(options["endtime"].removeprefix("uts"))
            assert not {"PENDING", "RUNNING", "SUSPENDED"} & set(options["state"].split(","))
            buckets = range(begin // _BUCKET, min(end, self.now + 90_000) // _BUCKET + 1)
            found = [
                job
                for bucket in buckets
                for job in self._by_end.get(bucket, ())
                if begin <= job.end <= end and job.ended_at <= self.now
            ]
        light = "--allocations" in plain
        fields, delimiter = options["format"].split(","), options["delimiter"]
        for job in found:
            if job.known_at > self.now and job.ended_at > self.now:
                continue
            self.answered += 1
            for values in _accounting_values(job, self.now, steps=not light):
                yield "".join(values.get(name, "") + delimiter for name in fields) + "\n"


def _queue_values(job: SlurmJob, now: int) -> dict[str, str]:
    runs = job.start is not None and job.start <= now
    tres = f"cpu={job.cpus},mem=4G,node=1"
    return {
        "JobID": str(job.jobid), "JobArrayID": job.display or str(job.jobid),
        "UserName": job.user, "UserID": "1001", "GroupName": "users", "Account": job.account,
        "Partition": "cpu", "QOS": "normal", "State": "RUNNING" if runs else "PENDING",
        "Reason": "None" if runs else "Priority", "SubmitTime": str(job.submit),
        "EligibleTime": str(job.submit), "StartTime": str(job.start if runs else now + 600),
        "EndTime": str(now + 3600), "TimeLimit": "1-00:00:00", "tres-alloc": tres,
        "NodeList": job.nodes if runs else "", "Name": job.name, "WorkDir": "/home/alice",
        "Dependency": "(null)", "Reservation": "(null)",
    }  # fmt: skip


def _accounting_values(job: SlurmJob, now: int, *, steps: bool) -> Iterator[dict[str, str]]:
    over = job.ended_at <= now
    runs = job.start is not None and (over or job.start <= now)
    seconds = (job.end - job.start) if over and job.start else 0
    tres = f"cpu={job.cpus},mem=4G,node=1"
    state = job.state if over else "RUNNING" if runs else "PENDING"
    base = {
        "JobIDRaw": str(job.jobid), "JobID": job.display or str(job.jobid),
        "DBIndex": str(job.dbindex), "State": state, "User": job.user, "UID": "1001",
        "Group": "users", "Account": job.account, "Partition": "cpu", "QOS": "normal",
        "Submit": str(job.submit), "Eligible": str(job.submit),
        "Start": str(job.start) if runs else "Unknown", "End": str(job.end) if over else "Unknown",
        "ElapsedRaw": str(seconds if over else now - (job.start or now)), "TimelimitRaw": "1440",
        "ReqTRES": tres, "AllocTRES": tres if runs else "", "ExitCode": job.exit_code,
        "NodeList": job.nodes if runs else "None assigned", "JobName": job.name,
        "WorkDir": "/home/alice", "Reason": "None", "TotalCPU": "00:00:00",
    }  # fmt: skip
    yield base | ({"TotalCPU": f"{seconds}"} if steps and job.steps and over else {})
    for number in range(job.steps if steps and runs else 0):
        name = "batch" if number == 0 else str(number - 1)
        yield base | {
            "JobIDRaw": f"{job.jobid}.{name}", "JobID": f"{job.jobid}.{name}", "User": "",
            "JobName": name, "TotalCPU": "00:01:00", "UserCPU": "00:00:50",
            "SystemCPU": "00:00:10", "MaxRSS": "1024K", "NTasks": "1",
            "TRESUsageInTot": "cpu=00:01:00,mem=1048576,fs/disk=4096",
            "State": "COMPLETED" if over else "RUNNING",
        }  # fmt: skip


def requeued(job: SlurmJob, submit: int, start: int, end: int) -> SlurmJob:
    """The next run of a job, which keeps its id."""
    return replace(job, submit=submit, start=start, end=end, known_at=0, ended_at=0)
