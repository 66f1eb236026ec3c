"""A month of logs: PBS' accounting logs, LSF's lsb.acct and lsb.stream, JSON lines.

Lines out of order and late, reruns, edits, the hour that comes twice, rotation by renaming and by
copying and truncating, half a line at the end of a file, a directory that is not there for hours.
"""

import random
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from batchjob.schedulers import json_lines
from batchjob.schedulers.lsf.accounting import lsb_acct, lsb_stream
from batchjob.schedulers.pbs.accounting import pbs_log
from benchmarks.months.site import (
    BEGIN,
    DAY,
    HOUR,
    Check,
    Clock,
    Differences,
    Key,
    compared,
    is_,
    outages,
    simulate,
)

ZONE = ZoneInfo("Europe/Berlin")
LARGEST_ID = 30_000  # of LSF, which then reuses ids


class LogLine(NamedTuple):
    """A line of a log, and when it is written."""

    at: int
    text: str


Made = tuple[list[LogLine], dict[Key, Check]]


class LogMonth:
    """Writes the lines as time goes, and moves the files about."""

    def __init__(self, folder: Path, kind: str, total: int, days: int, seed: int) -> None:
        self._kind = kind
        self._chance = random.Random(seed)
        self.outages = outages(self._chance, days)
        lines, self.expected = MAKERS[kind](self._chance, total, days)
        late = 0 if kind == "pbs_log" else 0.003  # the PBS server writes its log without delay
        self._lines = sorted(self._arriving(line, late) for line in lines)
        self._at = 0
        self._place, self._away = folder / "log", folder / "away"
        self._place.mkdir()
        self._path = self._place / "none"
        self._half = ""

    def _arriving(self, line: LogLine, late: float) -> LogLine:
        chance = self._chance
        delay = chance.randrange(12 * HOUR) if chance.random() < late else chance.randrange(20)
        return line._replace(at=line.at + delay)

    def advance(self, now: int, wall: float, down: set[str]) -> None:
        """See SimulatedScheduler; half a line may be all that there is for now."""
        del wall
        if self._away.exists():
            self._away.rename(self._place)
        if self._half:
            self._append(self._half)
        if self._chance.random() < 0.02:
            self._rotate()
        text = ""
        while self._at < len(self._lines) and self._lines[self._at].at <= now:
            text += self._lines[self._at].text
            self._at += 1
        names = {"pbs_log": f"{datetime.fromtimestamp(now, ZONE):%Y%m%d}", "jsonl": "1.jsonl"}
        self._path = self._place / names.get(self._kind, LSF_FILES.get(self._kind, ""))
        half = self._chance.randrange(1, 40) if text and self._chance.random() < 0.3 else 0
        self._append(text[: -half or None])
        self._half = text[-half:] if half else ""
        if down & {"scheduler", "network"}:
            self._place.rename(self._away)

    def _append(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text)

    def after_poll(self, now: int) -> None:
        """See SimulatedScheduler."""

    def source(self, clock: Clock) -> Any:  # noqa: ARG002
        """See SimulatedScheduler."""
        if self._kind == "pbs_log":
            options = pbs_log.PbsLogOptions(path=str(self._place), time_zone=str(ZONE))
            return pbs_log.PbsLog("c1", options)
        if self._kind == "jsonl":
            return json_lines.Jsonl("c1", json_lines.JsonLinesOptions(path=str(self._place)))
        path = str(self._place / LSF_FILES[self._kind])
        if self._kind == "lsb_acct":
            return lsb_acct.build("c1", lsb_acct.EventFileOptions(path=path))
        return lsb_stream.build("c1", lsb_acct.EventFileOptions(path=path))

    def _rotate(self) -> None:
        """By renaming, or by copying and truncating; the last lines may not have been read."""
        if self._kind == "pbs_log" or not self._path.exists():
            return
        if self._kind == "jsonl":
            aside = self._place / f"0-{len(list(self._place.iterdir())):03}.jsonl"
        else:
            old = sorted(self._place.glob("lsb.*.*"), key=lambda each: -int(each.suffix[1:]))
            for each in old:
                each.rename(each.with_suffix(f".{int(each.suffix[1:]) + 1}"))
            aside = self._place / f"{self._path.name}.1"
        if self._chance.random() < 0.5:
            self._path.rename(aside)
            self._path.touch()
        else:
            shutil.copy(self._path, aside)
            self._path.write_text("")


LSF_FILES = {"lsb_acct": "lsb.acct", "lsb_stream": "lsb.stream"}


def pbs(chance: random.Random, total: int, days: int) -> Made:
    lines: list[LogLine] = []
    expected: dict[Key, Check] = {}
    for number in range(total):
        submit = BEGIN + chance.randrange(days * DAY)
        jobid, run, start = f"{number}.pbs01", 1, submit + 60 + chance.randrange(900)
        base = f"user=alice account=physics queue=q ctime={submit} "
        add = _pbs_line(lines, jobid)
        add(submit, "Q", base)
        if chance.random() < 0.02:
            add(start, "D", "requestor=alice@login")
            expected[jobid, submit, 1] = is_("CANCELLED", None, start)
            continue
        while True:
            end = start + 60 + chance.randrange(7200)
            held = f"{base}start={start} exec_host=n{number % 100}/0 "
            add(start, "S", held)
            if run < 3 and chance.random() < 0.03:
                add(end, "R", f"{held}end={end} run_count={run}")
                expected[jobid, submit, run] = is_("REQUEUED", start, end)
                run, start = run + 1, end + 60 + chance.randrange(600)
                continue
            add(end, "E", f"{held}end={end} run_count={run} Exit_status=0")
            expected[jobid, submit, run] = is_("COMPLETED", start, end)
            break
    return lines, expected


def _pbs_line(lines: list[LogLine], jobid: str) -> Callable[[int, str, str], None]:
    def add(at: int, kind: str, attributes: str) -> None:
        stamp = datetime.fromtimestamp(at, ZONE).strftime("%m/%d/%Y %H:%M:%S")
        lines.append(LogLine(at, f"{stamp};{kind};{jobid};{attributes}\n"))

    return add


def lsf(chance: random.Random, total: int, days: int, form: str) -> Made:
    lines: list[LogLine] = []
    expected: dict[Key, Check] = {}
    times = sorted(BEGIN + chance.randrange(days * DAY) for _ in range(total))
    for number, submit in enumerate(times, 1):  # an id is reused after all others
        start = submit + chance.randrange(900)
        end = start + 1 + chance.randrange(7200)
        jobid = number % LARGEST_ID + 1
        lines.append(LogLine(end, form.format(jobid=jobid, submit=submit, start=start, end=end)))
        expected[str(jobid), submit, 1] = is_("COMPLETED", start, end)
    return lines, expected


JOB_FINISH = (
    '"JOB_FINISH" "10.1" {end} {jobid} 1001 33816578 1 {submit} 0 0 {start} "alice"'
    ' "gpu" "" "" "" "login" "" "" "out" "" "1783.1" 0 1 "n001" 64'
    ' 60.0 "train" "python train.py" 1.0 0.5 0 0 -1 0 0 0 0 0 0 0 -1 0 0 0 0 0 0 ""'
    ' "physics" 0 1 "" "" 0 0 "" "" "" 0 "" 0 "" -1 "" "" "" ""\n'
)
JOB_FINISH2 = (
    '"JOB_FINISH2" "10.1" {end} {jobid} 15 "userId" "1001" "userName" "alice" "numProcessors" "1"'
    ' "jStatus" "64" "submitTime" "{submit}" "startTime" "{start}" "endTime" "{end}"'
    ' "queue" "gpu" "fromHost" "login" "numExHosts" "1" "execHosts" "n001" "slotUsages" "1"'
    ' "cpuTime" "60.5" "projectName" "physics" "jobName" "train"\n'
)


def json_jobs(chance: random.Random, total: int, days: int) -> Made:
    lines: list[LogLine] = []
    expected: dict[Key, Check] = {}
    for number in range(total):
        submit = BEGIN + chance.randrange(days * DAY)
        start = submit + chance.randrange(900)
        end = start + 1 + chance.randrange(7200)
        head = f'{{"jobid": "{number}", "submit_time": {submit}, "start_time": {start}'
        lines.append(LogLine(start, head + ', "state": "RUNNING"}\n'))
        over = head + f', "end_time": {end}, "state": "COMPLETED"'
        lines.append(LogLine(end, over + "}\n"))
        if chance.random() < 0.01:  # the line is edited later
            at = end + chance.randrange(2 * DAY)
            lines.append(LogLine(at + DAY, f'{over}, "account": "edited"}}\n'))
            expected[str(number), submit, 1] = lambda found: found.account == "edited"
            continue
        expected[str(number), submit, 1] = is_("COMPLETED", start, end)
    return lines, expected


MAKERS: dict[str, Callable[[random.Random, int, int], Made]] = {
    "pbs_log": pbs,
    "lsb_acct": lambda *given: lsf(*given, JOB_FINISH),
    "lsb_stream": lambda *given: lsf(*given, JOB_FINISH2),
    "jsonl": json_jobs,
}


def log_month(
    folder: Path, kind: str, total: int, seed: int, days: int = 30, step: int = HOUR
) -> Differences:
    """A month of one of the logs."""
    month = LogMonth(folder, kind, total, days, seed)
    engine = simulate(folder, month, month.outages, days, step)
    return compared(engine, month.expected)
