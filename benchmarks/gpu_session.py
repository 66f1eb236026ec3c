"""Jobs of `batchjob run` on a real GPU, the exporter that watches them, and what NVML says."""

import contextlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu

ROOT = Path(__file__).parents[1]
PORT = 19917
UTILIZATION_LIMIT, ENERGY_LIMIT = 0.02, 0.05
HELPER_SOCKET = f"/tmp/batchjob-helper-{os.getpid()}"
MPS_DIRECTORY = "/tmp/batchjob-mps"  # a path of a socket must be short


class Load(NamedTuple):
    """A job: a shell command with $LOAD (see gpu_load.cu) and $TRUTH, and what is checked of it."""

    name: str
    command: str
    seconds: float
    checks: tuple[str, ...] = ("utilization", "energy")
    # The names and commands of jobs at the same time. A job that runs no load names the GPU.
    beside: tuple[tuple[str, str], ...] = ()
    mps: bool = False
    pause: float = 0.0  # before it
    of_no_job: str = ""  # a command at the same time that is no job


RECORDED_LOADS = ("copies", "one_block", "fp16", "fp64", "duty33", "shared_a", "mps_a")


class Row(NamedTuple):
    """A quantity of a job. A limit of None: shown for information."""

    load: str
    quantity: str
    truth: float | None
    shown: float | str
    difference: float | None
    limit: float | None

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if self.difference is not None and abs(self.difference) <= self.limit else "BAD"

    def line(self) -> str:
        truth = "-" if self.truth is None else f"{self.truth:.4g}"
        shown = self.shown if isinstance(self.shown, str) else f"{self.shown:.4g}"
        difference = "" if self.difference is None else f"{self.difference:+.3g}"
        name = f"{self.load:14} {self.quantity:34}"
        return f"{name} {truth:>12} {shown:>12} {difference:>10}  {self.verdict}"


@dataclass
class Recorder:
    """Reads NVML ten times a second: the board's energy, and what a replay needs."""

    pynvml: Any
    energy: list[tuple[float, float]] = field(default_factory=list)  # epoch seconds, joules
    raw: list[dict[str, Any]] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)
    instant: list[tuple[float, int]] = field(default_factory=list)  # field 186, milliwatts
    power: list[tuple[int, int]] = field(default_factory=list)  # samples of 20 ms
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        n, handle, step = self.pynvml, self.pynvml.nvmlDeviceGetHandleByIndex(0), 0
        while not self.over.wait(0.1):
            with contextlib.suppress(n.NVMLError):
                joules = n.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
                self.energy.append((time.time(), joules))
                self.clocks.append((time.time(), n.nvmlDeviceGetClockInfo(handle, 1)))
                answer = n.nvmlDeviceGetFieldValues(handle, [186])[0]
                self.instant.append((time.time(), answer.value.uiVal))
                if step % 20 == 0:
                    since = int((time.time() - 2.2) * 1e6)
                    _, samples = n.nvmlDeviceGetSamples(handle, 0, since)
                    self.power += [(each.timeStamp, each.sampleValue.uiVal) for each in samples]
                if step % 100 == 0:
                    since = int((time.time() - 10.2) * 1e6)
                    _, samples = n.nvmlDeviceGetSamples(handle, 1, since)
                    pairs = [(each.timeStamp, each.sampleValue.uiVal) for each in samples]
                    self.raw.append({"t": time.time(), "samples": pairs})
            step += 1

    def record_gpm(self) -> None:
        while not self.over.is_set():
            try:
                handle = self.pynvml.nvmlDeviceGetHandleByIndex(0)
                means = list(gpu.gpm_means(self.pynvml, handle))
            except Exception as error:  # not on this board
                self.raw.append({"t": time.time(), "gpm_error": str(error)})
                return
            self.raw.append({"t": time.time(), "gpm": means})

    def joules_at(self, at: float) -> float:
        """The counter lags by 0.1 s, and is updated ten times a second."""
        points = list(self.energy)
        later = next((i for i, (t, _) in enumerate(points) if t >= at + 0.1), len(points) - 1)
        (t0, j0), (t1, j1) = points[max(0, later - 1)], points[later]
        part = min(1.0, max(0.0, (at + 0.1 - t0) / (t1 - t0))) if t1 > t0 else 1.0
        return j0 + (j1 - j0) * part

    def clock(self, began: float, ended: float) -> float:
        """Mean of the SM clock in hertz while it was raised."""
        found = [mhz for t, mhz in self.clocks if began < t < ended]
        raised = [mhz for mhz in found if mhz > 0.6 * max(found)]
        return statistics.fmean(raised) * 1e6 if raised else 0.0


Samples = Mapping[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Samples:
    """Samples by the name of their metric."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z0-9_]+)(?:\{(.*)\})? (\S+)", line)
        if match:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found


class Session:
    """The exporter, and the jobs that were run."""

    def __init__(self, directory: Path, load: str, recorder: Recorder) -> None:
        self.directory, self.load, self.recorder = directory, load, recorder
        handle = recorder.pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = str(recorder.pynvml.nvmlDeviceGetUUID(handle))
        self.minor = int(recorder.pynvml.nvmlDeviceGetMinorNumber(handle))
        self.data = directory / "work"
        self.data.mkdir(parents=True, exist_ok=True)
        self.scrapes: list[tuple[float, Samples]] = []
        self.over = threading.Event()
        self.log = log = (directory / "exporter.log").open("w")
        self.helper = subprocess.Popen(
            [sys.executable, "-m", "batchjob_exporter.helper", f"--listen={HELPER_SOCKET}",
             f"--exporter-directory={directory}", "--give", "devices"],
            cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        self.exporter = subprocess.Popen(
            [sys.executable, "-m", "batchjob_exporter", f"--web.listen-address=127.0.0.1:{PORT}",
             "--collector.disable-defaults", "--collector.jobs", "--collector.gpu",
             "--collector.energy", f"--path.state={self.data}", f"--path.helper={HELPER_SOCKET}"],
            cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def follow(self) -> None:
        """Keep what is shown of jobs every 2 s."""
        while not self.over.wait(2):
            with contextlib.suppress(OSError):
                self.scrapes.append((time.time(), parse(self.scrape())))

    def start_job(
        self, name: str, command: str, *options: str, of_no_job: bool = False, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a job of `batchjob run`, or the same command without it."""
        script = ["sh", "-c", self.script(name, command)]
        run = [*self.batchjob("run"), "--name", name, "--quiet", "--no-logs", *options, "--"]
        return subprocess.Popen(
            script if of_no_job else [*run, *script],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=(self.data / f"{name}.err").open("w"),
            env={**os.environ, **variables},
        )

    def script(self, name: str, command: str) -> str:
        """The command with the variables that it needs, and a note of its begin and end."""
        variables = {"LOAD": self.load, "TRUTH": str(self.data / f"{name}.jsonl"),
                     "PYTHON": sys.executable}  # fmt: skip
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
        times = '{ echo "{\\"%s\\": $(date +%%s.%%N)}" >> "$TRUTH"; }'
        return f"export {words}; {times % 'began'}; {command}; {times % 'ended'}"

    def batchjob(self, command: str) -> list[str]:
        """A command of `batchjob` that reads or writes this session's runs."""
        data = str(self.data / "data")
        return [sys.executable, "-m", "batchjob_cli", command, "--data", data]

    def run(self, load: Load) -> None:
        """Run the job and those beside it; one that hangs is ended."""
        time.sleep(load.pause)
        mps = {"CUDA_MPS_PIPE_DIRECTORY": MPS_DIRECTORY} if load.mps else {}
        jobs = []
        for name, command in ((load.name, load.command), *load.beside):
            claim = {} if "$LOAD" in command else {"CUDA_VISIBLE_DEVICES": self.uuid}
            jobs.append(self.start_job(name, command, **mps, **claim))
        if load.of_no_job:
            time.sleep(1.5)  # until the jobs are there
            name = f"{load.name}_of_no_job"
            jobs.append(self.start_job(name, load.of_no_job, of_no_job=True))
        if load.name in RECORDED_LOADS:
            time.sleep(min(3.0, load.seconds / 2))
            with contextlib.suppress(Exception):
                text = hide(f"# {load.name}\n{gpu.record(self.recorder.pynvml)}")
                (self.data / f"{load.name}.record").write_text(text)
        end = time.monotonic() + load.seconds + 8
        for job in jobs:
            try:
                job.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.terminate()
                print(f"{load.name}: ended after {load.seconds + 8:.0f} s", flush=True)
        time.sleep(0.8)

    def truth(self, name: str) -> dict[str, Any]:
        """What the load wrote: its numbers, of which times of work are added up."""
        found: dict[str, Any] = {"busy": 0.0}
        with contextlib.suppress(OSError):
            for line in (self.data / f"{name}.jsonl").read_text().splitlines():
                values = json.loads(line)
                found["busy"] += values.pop("busy", 0.0)
                found = {**values, **found} if "began" in values else {**found, **values}
        if "ended" not in found or "error" in found:
            error = (self.data / f"{name}.err").read_text().strip()[-300:]
            raise RuntimeError(f"{found.get('error', 'it did not end')} {error}")
        return found

    def record(self, name: str) -> dict[str, Any]:
        """What `batchjob run` has recorded of a job."""
        for path in (self.data / "data/runs").glob("*.json"):
            found: dict[str, Any] = json.loads(path.read_text())
            if found.get("name") == name:
                return found
        raise RuntimeError("batchjob run kept no record of it")

    def jobid(self, name: str) -> str:
        return str(self.record(name)["jobid"])


class Shown:
    """What the exporter shows of a job."""

    def __init__(self, samples: Samples, jobid: str) -> None:
        self._samples, self._jobid = samples, jobid

    def get(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None without any."""
        found = [
            value
            for own, value in self._samples.get(f"batchjob_job_{name}", ())
            if own.get("jobid") == self._jobid and labels.items() <= own.items()
        ]
        return sum(found) if found else None

    def __getitem__(self, name: str) -> float:
        value = self.get(name)
        if value is None:
            raise KeyError(f"batchjob_job_{name} is absent")
        return value


def hide(text: str) -> str:
    """Without what names one board."""
    nobody = r"\1-00000000-0000-4000-8000-000000000000"
    return re.sub(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", nobody, text)


def of_utilization(_: Session, name: str, truth: Any, wall: float, shown: Shown) -> Iterator[Row]:
    observed = shown["gpu_observed_seconds_total"]
    true, seen = truth["busy"] / wall, shown["gpu_busy_seconds_total"] / observed
    yield Row(name, "utilization", true, seen, seen - true, UTILIZATION_LIMIT)
    yield Row(name, "observed / wall seconds", wall, observed, observed - wall, None)


def of_energy(session: Session, name: str, truth: Any, _: float, shown: Shown) -> Iterator[Row]:
    recorder = session.recorder
    true = recorder.joules_at(truth["ended"]) - recorder.joules_at(truth["began"])
    seen = shown.get("energy_joules_total", component="gpu")
    if seen is None:
        raise KeyError("batchjob_job_energy_joules_total is absent")
    yield Row(name, "energy, J", true, seen, seen / true - 1, ENERGY_LIMIT)
