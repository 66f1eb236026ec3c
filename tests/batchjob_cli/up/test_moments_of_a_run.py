"""Figures shown of runs at every stage, compared with the kernel's own.

While they run the cgroup's files are the truth, and at the end `/usr/bin/time -v`, which asks the
kernel by wait4(2): programs of known kinds run, and each place is asked again and again.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchjob.runtime.formatting import format_duration, size
from tests.batchjob_cli.run.conftest import own_cgroups
from tests.e2e.exporter import parse
from tests.helpers.processes import end, free_ports, run
from tests.helpers.waiting import scaled, until
from tests.security.remote_up import ROOT, start

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("time", path="/usr/bin") is None,
    reason="cgroups need root, and the numbers Debian's time",
)

LONGEST = scaled(180)  # seconds
_PACED = f"""
import os, subprocess, sys, threading, time
begun = time.monotonic()
def turns():
    while not os.path.exists("enough") and time.monotonic() < begun + {LONGEST}:
        yield
        time.sleep(0.25)
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
"""
PROGRAMS = {
    "cpu": "for _ in turns(): burn(0.1)",
    "memory": "held = []\nfor _ in turns():\n if len(held) < 40: held.append(os.urandom(4 << 20))",
    "io": """
with open("out", "wb") as file:
    for _ in turns():
        file.write(os.urandom(1 << 20)); file.flush(); os.fsync(file.fileno())
""",
    "threads": """
def work():
    for _ in turns(): burn(0.02)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    "children": """
burner = "import time\\nwhile time.process_time() < 0.2: pass"
for _ in turns(): subprocess.run([sys.executable, "-S", "-c", burner])
""",
}


class Kernel(NamedTuple):
    """Figures of a run's cgroup at one time."""

    at: float
    cpu_seconds: float
    peak_bytes: int | None
    threads: int


class Shown(NamedTuple):
    """Figures that a place shows of a run; None for what it leaves out."""

    place: str
    since: float  # the figures must not be older
    asked_until: float
    cpu_seconds: float | None = None
    peak_bytes: float | None = None
    threads: float | None = None


def kernel_figures(jobid: str) -> Kernel | None:
    """The files of either version; None once they are gone."""
    try:
        files = {file.name: file for path in own_cgroups(jobid) for file in path.iterdir()}
        if "cpuacct.usage" in files:
            cpu = int(files["cpuacct.usage"].read_text()) / 1e9
        else:
            cpu = int(files["cpu.stat"].read_text().split()[1]) / 1e6
        peak = files.get("memory.max_usage_in_bytes") or files.get("memory.peak")
        threads = files.get("tasks") or files["cgroup.threads"]
        return Kernel(
            time.time(), cpu, int(peak.read_text()) if peak else None,
            len(threads.read_text().split()),
        )  # fmt: skip
    except (OSError, KeyError, IndexError):
        return None


class Life:
    """The runs, and what was seen of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process, self.web, self.exporter = self.up()
        self.ids: dict[str, str] = {}
        self.truth: dict[str, list[Kernel]] = {name: [] for name in PROGRAMS}
        self.shown: dict[str, list[Shown]] = {name: [] for name in PROGRAMS}
        self.sampled: dict[str, list[float]] = {}  # when, of each run
        self.over = threading.Event()
        self.longest_pause = 0.0  # between two looks; the machine may be busy with others

    def up(self) -> tuple[subprocess.Popen[bytes], str, str]:
        web, exporter = (f"127.0.0.1:{port}" for port in free_ports(2))
        process = start(
            self.folder, web, f"--exporter-address={exporter}", "--samples.interval=1s",
            "--interval=0.5s",
        )  # fmt: skip
        return process, web, exporter

    def end(self) -> None:
        end(self.process)

    def get(self, address: str, path: str) -> str:
        token = (self.folder / "data" / "token").read_text().strip()
        request = urllib.request.Request(
            f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
            return str(answer.read().decode())

    def api(self, path: str) -> Any:
        return json.loads(self.get(self.web, f"/api/v1/{path}"))

    def command(self, *arguments: str) -> str:
        argv = [sys.executable, "-m", "batchjob_cli", *arguments]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "BATCHJOB_DATA": str(self.folder / "data"),
        }  # fmt: skip
        done = run(argv, timeout=120, env=environment, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, name: str) -> None:
        program = ("/usr/bin/time", "-v", "-o", f"{name}.told", sys.executable, "-c")
        self.ids[name] = self.command(
            "run", "--detach", f"--name={name}", "--", *program, _PACED + PROGRAMS[name]
        ).strip()

    def watch(self) -> None:
        """Record the kernel's figures of every run until `over` is set."""
        before = time.time()
        while not self.over.wait(0.1):
            for name, jobid in list(self.ids.items()):
                if (seen := kernel_figures(jobid)) is not None:
                    self.truth[name].append(seen)
            self.longest_pause = max(self.longest_pause, time.time() - before)
            before = time.time()

    def running(self) -> set[str]:
        return {name for name, jobid in self.ids.items() if own_cgroups(jobid)}

    def ask(self, name: str, place: Callable[["Life", str], Shown]) -> None:
        with contextlib.suppress(OSError):  # it is being started again
            self.shown[name].append(place(self, name))

    def ask_until_every_place_answered(self) -> None:
        """Ask every place for every run until each has shown figures."""
        begun, missing = time.time(), {(name, place) for name in PROGRAMS for place in PLACES}
        while missing:
            assert time.time() < begun + LONGEST / 3, missing
            for name, place in itertools.product(PROGRAMS, PLACES):
                self.ask(name, place)
                last = self.shown[name][-1:]
                if last and last[0].asked_until > begun and last[0].cpu_seconds is not None:
                    missing.discard((name, place))

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        (self.folder / "data" / "token").unlink(missing_ok=True)
        self.process, self.web, self.exporter = self.up()


def api_row(life: Life, name: str) -> Shown:
    """The row of lists."""
    rows = life.api(f"jobs?name={name}")
    row = rows[0] if rows else {}
    at = (row.get("usage_until_time") or 0) / 1000
    return Shown("row", at, time.time(), row.get("cpu_used_seconds"), row.get("memory_used_bytes"))


def report(life: Life, name: str) -> Shown:
    """The report, whose figures stand on the page of the job as well."""
    try:
        answer = life.api(f"jobs/{life.ids[name]}/report")
    except urllib.error.HTTPError:  # not on record yet
        return Shown("report", 0.0, time.time())
    at = (answer["basis"]["until_time"] or 0) / 1000
    used = answer["use"]
    return Shown("report", at, time.time(), used["cpu_seconds"], used["peak_memory_bytes"])


def metrics(life: Life, name: str) -> Shown:
    """What Prometheus would scrape, which is read for it."""
    asked_at = time.time()
    found = parse(life.get(life.exporter, "/metrics"), 0)

    def value(metric: str) -> float | None:
        series = found.series(f"batchjob_job_{metric}", jobid=life.ids[name])
        return sum(number for _, number in series) if series else None

    cpu = value("cpu_seconds_total")
    peak, threads = value("memory_peak_bytes"), value("threads")
    return Shown("metrics", asked_at, time.time(), cpu, peak, threads)


PLACES = (metrics, api_row, report)


def sampled(life: Life, name: str) -> list[float]:
    """When the run was sampled, in epoch seconds."""
    output = life.command("metrics", "--json", "--no-follow", name)
    return [json.loads(line)["time"] for line in output.splitlines()]


def samples(life: Life, name: str) -> Shown:
    """The last sample, by the command line."""
    output = life.command("metrics", "--json", "--no-follow", "--limit=1", name)
    last = json.loads(output.splitlines()[-1])
    cpu = last["cpu_user_seconds"] + last["cpu_system_seconds"]
    return Shown(
        "samples", last["time"], time.time(), cpu, last.get("memory_peak_bytes"),
        last.get("threads"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def life(tmp_path_factory) -> Iterator[Life]:
    """All lives, from before the first run to after the last."""
    new_life = Life(tmp_path_factory.mktemp("moments"))
    watcher = threading.Thread(target=new_life.watch)
    watcher.start()
    try:
        for name in PROGRAMS:
            new_life.begin(name)
            new_life.ask(name, metrics)  # it has hardly begun
            new_life.ask(name, api_row)
        if not new_life.running():
            pytest.skip("runs have no cgroup here")
        new_life.ask_until_every_place_answered()
        new_life.kill_and_restart()
        new_life.ask_until_every_place_answered()
        (new_life.folder / "enough").touch()
        until(lambda: not new_life.running(), "the ends of the programs", 60)
        new_life.over.set()
        watcher.join()
        new_life.sampled = {name: sampled(new_life, name) for name in PROGRAMS}
        yield new_life
    finally:
        new_life.over.set()
        new_life.end()


_LATE = 3.0  # seconds by which what is shown may be older than it says
_TICKS = 0.1  # of 10 ms, by which cgroup v1 tells user from system time; neither of them falls


def faults(shown: Shown, life: Life, name: str) -> Iterator[str]:
    """Wrong figures that a place showed of a running run."""
    truth, late = life.truth[name], _LATE + 2 * life.longest_pause
    # On a busy machine samples come late; the last one may just be written.
    sampled = [at for at in life.sampled[name] if at <= shown.since][-2:]
    known = min(shown.since - late, sampled[0] if len(sampled) == 2 else 0.0)
    before = [seen for seen in truth if seen.at <= known]
    after = [seen for seen in truth if seen.at >= shown.asked_until]
    if shown.cpu_seconds is not None:
        low = before[-1].cpu_seconds if before else 0.0
        if shown.cpu_seconds < low - _TICKS:
            yield f"{shown.place}: CPU {shown.cpu_seconds} s, {low} s had been used"
        if after and shown.cpu_seconds > after[0].cpu_seconds + _TICKS:
            yield f"{shown.place}: CPU {shown.cpu_seconds} s before {after[0].cpu_seconds} s"
    if shown.peak_bytes is not None:
        low = (before[-1].peak_bytes if before else 0) or 0
        if shown.peak_bytes < low:
            yield f"{shown.place}: peak {shown.peak_bytes}, {low} had been used"
        if after and after[0].peak_bytes is not None and shown.peak_bytes > after[0].peak_bytes:
            yield f"{shown.place}: peak {shown.peak_bytes} before {after[0].peak_bytes}"
    if shown.threads is not None:
        near = [
            seen.threads for seen in truth
            if known <= seen.at <= shown.asked_until + late
        ]  # fmt: skip
        if near and truth[0].at <= known and not min(near) <= shown.threads <= max(near):
            yield f"{shown.place}: {shown.threads} threads, not {min(near)} to {max(near)}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_while_running(life, name):
    assert len(life.truth[name]) > 3
    assert not [fault for shown in life.shown[name] for fault in faults(shown, life, name)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_after_end(life, name):
    last, jobid = life.truth[name][-1], life.ids[name]
    text = until(lambda: (life.folder / f"{name}.told").read_text(), "time has told", 20)

    def time_figure(label: str) -> float:
        return float(re.search(rf"{re.escape(label)}: ([\d.]+)", text)[1])

    cpu = time_figure("User time (seconds)") + time_figure("System time (seconds)")
    until(lambda: life.api(f"jobs/{jobid}")[0]["end_time"], "the end on record", 30, interval=0.5)

    def right(row: Any) -> None:
        assert row["cpu_used_seconds"] == pytest.approx(cpu, abs=0.15), row["cpu_basis"]
        assert row["cpu_used_seconds"] >= last.cpu_seconds - _TICKS
        if last.peak_bytes is not None:
            assert row["memory_used_bytes"] >= last.peak_bytes
        if name == "memory":
            resident = time_figure("Maximum resident set size (kbytes)") * 1024
            assert row["memory_used_bytes"] == pytest.approx(resident, rel=0.25)

    right(life.api(f"jobs/{jobid}")[0])  # just ended
    row = until(
        lambda: (row := life.api(f"jobs/{jobid}")[0])["usage_final"] and row,
        "measured",
        240,
        interval=0.5,
    )
    right(row)
    assert row["usage_coverage"] == pytest.approx(1.0, abs=0.01)
    (listed,) = json.loads(life.command("jobs", "--format=json", "--name", name))
    assert {key: listed[key] for key in ("cpu_used_seconds", "memory_used_bytes")} == {
        key: row[key] for key in ("cpu_used_seconds", "memory_used_bytes")
    }
    used = life.api(f"jobs/{jobid}/report")["use"]
    page = " ".join(re.sub("<[^>]*>", " ", life.get(life.web, f"/jobs/{jobid}")).split())
    page = page.replace("\u202f", " ")
    assert used["cpu_seconds"] == pytest.approx(cpu, abs=0.15)
    assert f"CPU time {format_duration(used['cpu_seconds'])}" in page
    assert size(used["peak_memory_bytes"]) in page
    assert samples(life, name).cpu_seconds == pytest.approx(cpu, abs=0.15)
    if name == "io":
        written = time_figure("File system outputs") * 512
        assert written >= 1 << 20  # how many turns it had is up to the disk
        assert used["written_bytes"] == pytest.approx(written, abs=64 << 10)
