"""A month of a busy centre, through the poller into a database, compared with a model apart.

    PYTHONPATH=. python benchmarks/month.py [JOBS [OTHERS [SEED]]]

Through sacct and squeue: arrays, het jobs, requeues, node failures, a federation's ids, ids that
wrap, jobs cancelled while held, edits after the end; accounting that is late, out of order or cut
off; slurmdbd, slurmctld, network and poller that are down; a clock that is set forward, back and
right again. Through the logs of PBS, LSF and JSON lines: lines out of order, reruns, the hour that
comes twice, rotation by renaming and by copying and truncating, half a line at the end of a file.
tests/batchjob_stats_db/poller/test_month.py runs a small one.
"""

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from batchjob.schedulers import json_lines
from batchjob.schedulers.lsf.accounting import lsb_acct
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.slurm.accounting import sacct
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse, writer
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from tests.simulated.slurm import SimulatedSlurm, SlurmJob, requeued

BEGIN = 1_791_806_400  # 12 October 2026; clocks go back on the 25th
MINUTE, HOUR, DAY = 60, 3600, 86_400
FEDERATED = 3 << 26  # the cluster's number in a federation, as slurmctld puts it into its ids
ZONE = ZoneInfo("Europe/Berlin")


class Differences(NamedTuple):
    """What the database has at the end, beside the model."""

    jobs: int
    lost: int
    doubled: int
    stale: int


class Clock:
    """True time, and what the machine of the poller takes it for."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.ahead = 0

    def wall(self) -> float:
        return float(self.now + self.ahead)

    def monotonic(self) -> float:
        return float(self.now - BEGIN)


def poller(engine: sa.Engine, source: object, clock: Clock) -> Poller:
    """A poller as it begins: it remembers nothing."""
    cluster = ClusterSettings("c1", (source,), (), TsdbOptions())  # type: ignore[arg-type]
    store = Store(engine, "c1", cluster.tsdb.policy(), clock.wall)
    options = PollOptions(interval=MINUTE, rollup_interval=100 * DAY)
    metrics = PollerMetrics()
    return Poller(
        cluster, store, None, options, RetentionOptions(), metrics, clock.wall, clock.monotonic
    )


class Outage(NamedTuple):
    """A time in which something is down."""

    what: str  # link (slurmctld to slurmdbd), slurmdbd, slurmctld, network, poller, clock
    begin: int
    end: int
    ahead: int = 0  # of a wrong clock


def outages(chance: random.Random, days: int) -> list[Outage]:
    """Two of each kind, but for those of slurmctld's way to slurmdbd longer than any other."""
    found = []
    for what, longest in (
        ("link", 12), ("slurmdbd", 6), ("slurmctld", 3), ("network", 4), ("poller", 26),
    ):  # fmt: skip
        for _ in range(2):
            begin = BEGIN + chance.randrange(HOUR, days * DAY)
            found.append(Outage(what, begin, begin + chance.randrange(600, longest * HOUR)))
    for ahead in (HOUR, DAY, -HOUR):
        begin = BEGIN + chance.randrange(HOUR, days * DAY)
        length = chance.choice((600, 2 * HOUR))
        found.append(Outage("clock", begin, begin + length, ahead))
    return found


class Month:
    """Slurm's jobs of a month, made day by day."""

    def __init__(self, total: int, days: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.days, self.per_day = days, max(1, total // days)
        self.late = min(0.003, 300 / total)
        self.outages = outages(self.chance, days)
        self.slurm = SimulatedSlurm(BEGIN)
        self.jobs: list[SlurmJob] = []
        self.edits: list[tuple[int, SlurmJob]] = []
        self._next = 650_000  # wraps within the month at a million jobs
        self._used: dict[int, int] = {}  # id to the last end

    def _id(self, number: int = 1) -> int:
        first = self._next
        self._next += number
        if self._next > 700_000 + number:
            self._next = 1
        return FEDERATED + first

    def _arrives(self, at: int) -> int:
        """When accounting has heard of what happens then."""
        delay = self.chance.choice((0, 1, 2, 5))
        if self.chance.random() < self.late:
            delay = self.chance.randrange(12 * HOUR)
        for outage in self.outages:
            if outage.what in ("link", "slurmdbd") and outage.begin <= at < outage.end:
                delay = max(delay, outage.end - at + self.chance.randrange(600))
        return at + delay

    def _life(self, submit: int) -> tuple[int, int]:
        start = submit + int(self.chance.expovariate(1 / 900))
        return start, start + 1 + int(self.chance.expovariate(1 / 2400))

    def _add(self, job: SlurmJob) -> SlurmJob:
        job.known_at = self._arrives(job.submit)
        job.ended_at = self._arrives(job.end)
        self.jobs.append(self.slurm.add(job))
        if self.chance.random() < 0.001:
            self.edits.append((job.end + self.chance.randrange(2 * DAY), job))
        return job

    def day(self, number: int) -> None:
        """Make the jobs that are submitted on one day."""
        chance, made = self.chance, 0
        while made < self.per_day:
            submit = BEGIN + number * DAY + chance.randrange(DAY)
            kind = chance.random()
            width = chance.randrange(2, 20) if kind < 0.05 else 2 if kind < 0.07 else 1
            first = self._id(width)
            for index in range(width):
                start, end = self._life(submit)
                display = f"{first}_{index}" if kind < 0.05 else ""
                display = f"{first}+{index}" if 0.05 <= kind < 0.07 else display
                job = SlurmJob(
                    first + index, submit, start, end, display=display, steps=chance.choice((0, 2)),
                    user=f"user{chance.randrange(200)}", account=f"account{chance.randrange(30)}",
                    state=chance.choices(("COMPLETED", "FAILED", "TIMEOUT"), (90, 8, 2))[0],
                )  # fmt: skip
                if chance.random() < 0.02:
                    job.start, job.state = None, "CANCELLED"
                    job.steps = 0
                elif chance.random() < 0.02:
                    job.state = chance.choice(("REQUEUED", "NODE_FAIL"))
                self._add(job)
                if job.state in ("REQUEUED", "NODE_FAIL"):
                    start, last = self._life(end + 1)
                    again = requeued(job, end + 1, start, last)
                    again.state = "COMPLETED"
                    self._add(again)
                made += 1

    def set_time(self, clock: Clock) -> bool:
        """Put what is down at this time down; whether the poller is there."""
        now, slurm = clock.now, self.slurm
        down = {each.what for each in self.outages if each.begin <= now < each.end}
        slurm.now = now
        slurm.dbd_down = bool(down & {"slurmdbd", "network"})
        slurm.ctld_down = bool(down & {"slurmctld", "network"})
        clock.ahead = sum(
            each.ahead
            for each in self.outages
            if each.what == "clock" and each.begin <= now < each.end
        )
        for edit in [edit for edit in self.edits if edit[0] <= now]:
            edit[1].account = "edited"
            self.edits.remove(edit)
        return "poller" not in down


def slurm_month(
    folder: Path, total: int, seed: int, days: int = 30, step: int = 600
) -> Differences:
    """A month of Slurm, and two quiet days."""
    engine, clock, month = database(folder), Clock(), Month(total, days, seed)

    def begin() -> Poller:
        source = sacct.Sacct(
            "c1", sacct.SacctOptions(), clock=clock.wall, monotonic=clock.monotonic
        )
        return poller(engine, source, clock)

    made, was_there = begin(), True
    with patch.object(sacct, "run", month.slurm.run):
        for number in range(days + 3):
            if number < days:
                month.day(number)
            while clock.now < BEGIN + (number + 1) * DAY:
                clock.now += step
                there = month.set_time(clock)
                if there and not was_there:
                    made = begin()
                was_there = there
                if there:
                    made.cycle()
    expected = {
        (str(job.jobid), job.submit, 1): (job.state, job.start, job.end, job.account, job.steps)
        for job in month.jobs
    }
    words = {"REQUEUED": "REQUEUED"}
    with engine.connect() as db:
        steps = dict(
            db.execute(
                sa.select(schema.job_step.c.job_id, sa.func.count()).group_by(
                    schema.job_step.c.job_id
                )
            ).all()
        )
        job = schema.job.c
        query = sa.select(
            job.id, job.jobid, job.submit_time, job.run, job.state, job.start_time, job.end_time,
            job.account,
        )  # fmt: skip
        found = {
            (row.jobid, row.submit_time, row.run): (
                words.get(row.state, row.state), row.start_time, row.end_time, row.account,
                steps.get(row.id, 0),
            )
            for row in db.execute(query)
        }  # fmt: skip
    return compared(engine, expected, found)


def compared(engine: sa.Engine, expected: dict, found: dict) -> Differences:  # type: ignore[type-arg]
    engine.dispose()
    shown = [key for key in expected if found.get(key) != expected[key]][:5]
    for key in shown:
        print(f"  {key}: expected {expected[key]}, found {found.get(key)}")
    for key in [key for key in found if key not in expected][:5]:
        print(f"  {key}: not expected: {found[key]}")
    return Differences(
        len(expected),
        sum(key not in found for key in expected),
        sum(key not in expected for key in found),
        sum(key in found and found[key] != expected[key] for key in expected),
    )


def database(folder: Path) -> sa.Engine:
    from batchjob_stats_db.admin.migrate import migrate

    engine = writer(parse(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    return engine


class LogLine(NamedTuple):
    """A line of a log, and when it is written."""

    at: int
    text: str


def logs_month(
    folder: Path, kind: str, total: int, seed: int, days: int = 30, step: int = HOUR
) -> Differences:
    """A month of one of the logs."""
    chance = random.Random(seed)
    lines, expected = {"pbs_log": pbs, "lsb_acct": lsf, "jsonl": jsonl}[kind](chance, total, days)
    lines.sort(key=lambda line: line.at + chance.randrange(20))
    engine, clock = database(folder), Clock()
    place = folder / "log"
    place.mkdir()
    source = {
        "pbs_log": lambda: pbs_log.PbsLog(
            "c1", pbs_log.PbsLogOptions(path=str(place), time_zone=str(ZONE))
        ),
        "lsb_acct": lambda: lsb_acct.build("c1", lsb_acct.LsbAcctOptions(path=f"{place}/lsb.acct")),
        "jsonl": lambda: json_lines.build("c1", json_lines.JsonLinesOptions(path=str(place))),
    }[kind]
    made, at = poller(engine, source(), clock), 0
    while clock.now < BEGIN + (days + 2) * DAY:
        clock.now += step
        late = []
        while at < len(lines) and lines[at].at <= clock.now:
            late.append(lines[at].text)
            at += 1
        name = {"pbs_log": f"{datetime.fromtimestamp(clock.now, ZONE):%Y%m%d}", "jsonl": "1.jsonl"}
        path = place / name.get(kind, "lsb.acct")
        half = chance.randrange(1, 40) if late and chance.random() < 0.3 else 0
        with path.open("a") as file:
            file.write("".join(late)[: -half or None])
        made.cycle()
        with path.open("a") as file:
            file.write("".join(late)[-half:] if half else "")
        if chance.random() < 0.02:
            rotate(place, path, kind, chance)
        if chance.random() < 0.02:
            made = poller(engine, source(), clock)
    job = schema.job.c
    with engine.connect() as db:
        query = sa.select(
            job.jobid, job.submit_time, job.run, job.state, job.start_time, job.end_time
        )
        found = {tuple(row[:3]): tuple(row[3:]) for row in db.execute(query)}
    return compared(engine, expected, found)


def rotate(place: Path, path: Path, kind: str, chance: random.Random) -> None:
    """By renaming, or by copying and truncating; before the last lines have been read."""
    if kind == "pbs_log":
        return
    if kind == "jsonl":
        aside = place / f"0-{len(list(place.iterdir())):03}.jsonl"
    else:
        old = sorted(place.glob("lsb.acct.*"), key=lambda each: -int(each.suffix[1:]))
        for each in old:
            each.rename(place / f"lsb.acct.{int(each.suffix[1:]) + 1}")
        aside = place / "lsb.acct.1"
    if chance.random() < 0.5:
        path.rename(aside)
        path.touch()
    else:
        shutil.copy(path, aside)
        path.write_text("")


Made = tuple[list[LogLine], dict[tuple[str, int, int], tuple[str, int | None, int]]]


def pbs(chance: random.Random, total: int, days: int) -> Made:
    lines: list[LogLine] = []
    expected = {}
    for number in range(total):
        submit = BEGIN + chance.randrange(days * DAY)
        jobid, run, start = f"{number}.pbs01", 1, submit + 60 + chance.randrange(900)
        base = f"user=alice account=physics queue=q ctime={submit} "
        add = _pbs_line(lines, jobid)
        add(submit, "Q", base)
        if chance.random() < 0.02:
            add(start, "D", "requestor=alice@login")
            expected[jobid, submit, 1] = ("CANCELLED", None, start)
            continue
        while True:
            end = start + 60 + chance.randrange(7200)
            held = f"{base}start={start} exec_host=n{number % 100}/0 "
            add(start, "S", held)
            if run < 3 and chance.random() < 0.03:
                add(end, "R", f"{held}end={end} run_count={run}")
                expected[jobid, submit, run] = ("REQUEUED", start, end)
                run, start = run + 1, end + 60 + chance.randrange(600)
                continue
            add(end, "E", f"{held}end={end} run_count={run} Exit_status=0")
            expected[jobid, submit, run] = ("COMPLETED", start, end)
            break
    return lines, expected


def _pbs_line(lines: list[LogLine], jobid: str):  # type: ignore[no-untyped-def]
    def add(at: int, kind: str, attributes: str) -> None:
        stamp = datetime.fromtimestamp(at, ZONE).strftime("%m/%d/%Y %H:%M:%S")
        lines.append(LogLine(at, f"{stamp};{kind};{jobid};{attributes}\n"))

    return add


def lsf(chance: random.Random, total: int, days: int) -> Made:
    lines, expected = [], {}
    for number in range(1, total + 1):
        submit = BEGIN + chance.randrange(days * DAY)
        start = submit + chance.randrange(900)
        end = start + 1 + chance.randrange(7200)
        text = (
            f'"JOB_FINISH" "10.1" {end} {number} 1001 33816578 1 {submit} 0 0 {start} "alice"'
            f' "gpu" "" "" "" "login" "" "" "out" "" "1783.{number}" 0 1 "n{number % 100:03}" 64'
            f' 60.0 "train" "python train.py" 1.0 0.5 0 0 -1 0 0 0 0 0 0 0 -1 0 0 0 0 0 0 ""'
            ' "physics" 0 1'
        )
        lines.append(LogLine(end, text + ' "" "" 0 0 "" "" "" 0 "" 0 "" -1 "" "" "" ""\n'))
        expected[str(number), submit, 1] = ("COMPLETED", start, end)
    return lines, expected


def jsonl(chance: random.Random, total: int, days: int) -> Made:
    lines, expected = [], {}
    for number in range(total):
        submit = BEGIN + chance.randrange(days * DAY)
        start = submit + chance.randrange(900)
        end = start + 1 + chance.randrange(7200)
        head = f'{{"jobid": "{number}", "submit_time": {submit}, "start_time": {start}'
        lines.append(LogLine(start, head + ', "state": "RUNNING"}\n'))
        lines.append(LogLine(end, head + f', "end_time": {end}, "state": "COMPLETED"}}\n'))
        expected[str(number), submit, 1] = ("COMPLETED", start, end)
    return lines, expected


def runs(total: int, others: int, seed: int) -> Iterator[tuple[str, Differences, float]]:
    """Each source in a folder of its own."""
    for kind, number in (
        ("sacct", total), ("pbs_log", others), ("lsb_acct", others), ("jsonl", others),
    ):  # fmt: skip
        begun = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind == "sacct":
                found = slurm_month(folder, number, seed)
            else:
                found = logs_month(folder, kind, number, seed)
        yield kind, found, time.process_time() - begun


def main() -> None:
    total, others, seed = (*map(int, sys.argv[1:]), *(1_000_000, 100_000, 1)[len(sys.argv) - 1 :])
    print(f"seed {seed}, {datetime.now(UTC):%Y-%m-%d}")
    for kind, found, seconds in runs(total, others, seed):
        print(f"{kind}: {found}, {seconds:.0f} s CPU", flush=True)


if __name__ == "__main__":
    main()
