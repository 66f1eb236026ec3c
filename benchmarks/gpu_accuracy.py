"""What the exporter shows of jobs on a real NVIDIA GPU, beside what they did.

    python -m benchmarks.gpu_accuracy DIRECTORY [--load PROGRAM] [--seconds 190]

Runs each load of `LOADS` as a job of `batchjob run`, reads the exporter's metrics when all have
ended, and prints a line for each quantity: the truth, what is shown, and the difference. The truth
is that of CUDA's events and of the wall clock (benchmarks/gpu_load.cu, which nvcc compiles, and
torch for matrix products); energy is that of the board's own counter while the job ran. Everything
is also in DIRECTORY as JSON, with the exporter's metrics every 2 s and NVML's raw answers, without
UUIDs. A load that fails is reported, and the others go on.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu

ROOT = Path(__file__).parents[1]
PORT = 19917
UTILIZATION_LIMIT, ENERGY_LIMIT = 0.02, 0.05
SETTLED_SECONDS = 44.0  # after which the exporter has given the last samples to the last job
PIPE_FLOPS_PER_CYCLE = 4096  # dense fp16 products on each multiprocessor of a GH100
MPS_DIRECTORY = "/tmp/batchjob-mps"  # a path of a socket must be short


class Load(NamedTuple):
    """A job: a mode of gpu_load and its options, or a shell command with $LOAD and $TRUTH."""

    name: str
    command: str
    seconds: float
    checks: tuple[str, ...] = ("utilization", "energy")
    beside: tuple[tuple[str, str], ...] = ()  # the names and commands of jobs at the same time
    mps: bool = False


DUTY = '"$LOAD" duty "$TRUTH" percent={} seconds={}'
LOADS = (
    Load("duty33", DUTY.format(33, 5), 6),
    Load("one_second", DUTY.format(100, 1), 2),
    Load("spike", '"$LOAD" spike "$TRUTH" part=0.6', 4, ("memory",)),
    Load("copies", '"$LOAD" copy "$TRUTH" seconds=3', 5, ("utilization", "energy", "copies")),
    Load("one_block", DUTY.format(100, 3) + " blocks=1", 5, ("utilization", "energy", "sm")),
    Load("loop", f"for i in 1 2 3 4; do {DUTY.format(100, 0.5)}; sleep 1; done", 9),
    Load("fp16", '"$PYTHON" -m benchmarks.gpu_accuracy matmul "$TRUTH"', 20,
         ("utilization", "energy", "tensor")),
    Load("fp64", '"$LOAD" fp64 "$TRUTH" seconds=3', 5, ("utilization", "energy", "fp64")),
    Load("duty82", DUTY.format(82, 5), 6),
    Load("orphan", '"$LOAD" orphan "$TRUTH" gib=4 parent=1 child=5; sleep 5.5', 8, ("orphan",)),
    Load("shared_a", DUTY.format(100, 5) + " gib=3", 7, ("shared",),
         (("shared_b", DUTY.format(25, 5) + " gib=2"),)),
    Load("duty15", DUTY.format(15, 5), 6),
    Load("duty97", DUTY.format(97, 5), 6, ("utilization", "energy", "sm")),
    Load("dram", '"$LOAD" copy "$TRUTH" way=d2d seconds=3', 5, ("utilization", "energy", "dram")),
    Load("three_seconds", DUTY.format(100, 3), 4),
    # The last: samples within 5 s of processes under MPS are nobody's.
    Load("mps_a", DUTY.format(100, 5) + " gib=3", 14, ("mps",),
         (("mps_b", DUTY.format(50, 5) + " gib=2"),), True),
)  # fmt: skip
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
        self.data = directory / "work"
        self.data.mkdir(parents=True, exist_ok=True)
        self.scrapes: list[tuple[float, Samples]] = []
        self.over = threading.Event()
        self.exporter = subprocess.Popen(
            [sys.executable, "-m", "batchjob_exporter", f"--web.listen-address=127.0.0.1:{PORT}",
             "--collector.disable-defaults", "--collector.jobs", "--collector.gpu",
             "--collector.energy", f"--path.state={self.data}"],
            cwd=ROOT, stdout=(directory / "exporter.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def follow(self) -> None:
        """Keep what is shown of jobs every 2 s."""
        while not self.over.wait(2):
            with contextlib.suppress(OSError):
                self.scrapes.append((time.time(), parse(self.scrape())))

    def start_job(self, name: str, command: str, mps: bool) -> subprocess.Popen[bytes]:
        truth = self.data / f"{name}.jsonl"
        times = '{ echo "{\\"%s\\": $(date +%%s.%%N)}" >> "$TRUTH"; }'
        script = f"{times % 'began'}; {command}; {times % 'ended'}"
        more = {"CUDA_MPS_PIPE_DIRECTORY": MPS_DIRECTORY} if mps else {}
        return subprocess.Popen(
            [sys.executable, "-m", "batchjob_cli", "run", "--data", str(self.data / "data"),
             "--name", name, "--quiet", "--no-logs", "--", "sh", "-c", script],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=(self.data / f"{name}.err").open("w"),
            env={**os.environ, "LOAD": self.load, "TRUTH": str(truth), "PYTHON": sys.executable,
                 **more},
        )  # fmt: skip

    def run(self, load: Load) -> None:
        """Run the job and those beside it; one that hangs is ended."""
        time.sleep(6 if load.mps else 0)
        jobs = [
            self.start_job(name, command, load.mps)
            for name, command in ((load.name, load.command), *load.beside)
        ]
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

    def jobid(self, name: str) -> str:
        for path in (self.data / "data/runs").glob("*.json"):
            if json.loads(path.read_text()).get("name") == name:
                return path.stem
        raise RuntimeError("batchjob run kept no record of it")


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


def rows(session: Session, load: Load, final: Samples) -> Iterator[Row]:
    """The rows of a load, as far as its figures are there."""
    shown = Shown(final, session.jobid(load.name))
    truth = session.truth(load.name)
    wall = truth["ended"] - truth["began"]
    for check in load.checks:
        try:
            yield from CHECKS[check](session, load, truth, wall, shown)
        except KeyError as error:
            yield Row(load.name, check, None, f"absent ({error.args[0]})", None, 0.0)


def of_utilization(_: Session, load: Load, truth: Any, wall: float, shown: Shown) -> Iterator[Row]:
    observed = shown["gpu_observed_seconds_total"]
    true, seen = truth["busy"] / wall, shown["gpu_busy_seconds_total"] / observed
    yield Row(load.name, "utilization", true, seen, seen - true, UTILIZATION_LIMIT)
    yield Row(load.name, "observed / wall seconds", wall, observed, observed - wall, None)


def of_energy(session: Session, load: Load, truth: Any, _: float, shown: Shown) -> Iterator[Row]:
    recorder = session.recorder
    true = recorder.joules_at(truth["ended"]) - recorder.joules_at(truth["began"])
    seen = shown.get("energy_joules_total", component="gpu")
    if seen is None:
        raise KeyError("batchjob_job_energy_joules_total is absent")
    yield Row(load.name, "energy, J", true, seen, seen / true - 1, ENERGY_LIMIT)


def context_bytes(session: Session) -> float:
    """Memory of a process that takes none for itself, from a job that did so."""
    for name in ("duty33", "duty15", "duty82"):
        with contextlib.suppress(RuntimeError, KeyError):
            return Shown(parse(session.scrape()), session.jobid(name))["gpu_memory_peak_bytes"]
    raise KeyError("no job without memory of its own has a peak")


def of_memory(session: Session, load: Load, truth: Any, _: float, shown: Shown) -> Iterator[Row]:
    seen = shown["gpu_memory_peak_bytes"] - context_bytes(session)
    difference = seen / truth["bytes"] - 1
    yield Row(load.name, "peak beyond the context, B", truth["bytes"], seen, difference, 0.001)
    yield Row(load.name, "seconds for which it was held", truth["held"], "", None, None)


def of_sm(_: Session, load: Load, truth: Any, wall: float, shown: Shown) -> Iterator[Row]:
    true = truth["busy"] * truth["blocks"] / truth["sm_count"] / wall
    for name, share in (("sm_active", 1.0), ("sm_occupancy", 4 / truth["warps_per_sm"])):
        seen = shown[f"gpu_{name}_seconds_total"] / shown["gpu_profiled_seconds_total"]
        yield Row(load.name, name, true * share, seen, seen - true * share, UTILIZATION_LIMIT)
    peak, most = shown["gpu_sm_active_peak_ratio"], truth["blocks"] / truth["sm_count"]
    yield Row(load.name, "sm_active, highest second", most, peak, peak - most, None)


def of_copies(_: Session, load: Load, truth: Any, __: float, shown: Shown) -> Iterator[Row]:
    seen = shown["gpu_sm_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
    yield Row(load.name, "sm_active", 0.0, seen, seen, UTILIZATION_LIMIT)
    received = shown.get("gpu_pcie_bytes_total", direction="receive") or 0.0
    yield Row(load.name, "PCIe received, B (with overhead)", truth["bytes"], received,
              received / truth["bytes"] - 1, 0.12)  # fmt: skip


def of_dram(_: Session, load: Load, truth: Any, wall: float, shown: Shown) -> Iterator[Row]:
    true = 2 * truth["bytes"] / truth["dram_peak"] / wall
    seen = shown["gpu_dram_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
    yield Row(load.name, "dram_active", true, seen, seen - true, UTILIZATION_LIMIT)


def of_fp64(_: Session, load: Load, truth: Any, wall: float, shown: Shown) -> Iterator[Row]:
    seen = shown["gpu_fp64_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
    true = truth["fp64"] / wall
    yield Row(load.name, "fp64_active", true, seen, seen - true, UTILIZATION_LIMIT)


def of_tensor(session: Session, load: Load, truth: Any, w: float, shown: Shown) -> Iterator[Row]:
    clock = session.recorder.clock(truth["first"], truth["last"])
    peak = PIPE_FLOPS_PER_CYCLE * truth["sm_count"] * clock
    true = truth["flops"] / peak / w
    seen = shown["gpu_tensor_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
    yield Row(load.name, "tensor_active; truth: share of peak", true, seen, seen - true, None)
    for name in ("fp64", "fp32", "fp16", "dram"):
        seen = shown[f"gpu_{name}_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
        yield Row(load.name, f"{name}_active", None, seen, None, None)


def of_orphan(session: Session, load: Load, truth: Any, _: float, shown: Shown) -> Iterator[Row]:
    jobid, context = session.jobid(load.name), context_bytes(session)
    after = [
        Shown(samples, jobid).get("gpu_memory_bytes")
        for at, samples in session.scrapes
        if truth["parent_ended"] + 0.3 < at < truth["child_ended"]
    ]
    seen = (after[-1] if after and after[-1] is not None else 0.0) - context
    difference = seen / truth["bytes"] - 1
    yield Row(load.name, "memory once the parent has ended, B", truth["bytes"], seen, difference,
              0.001)  # fmt: skip
    seen = shown["gpu_memory_peak_bytes"] - context
    yield Row(load.name, "peak beyond the context, B", truth["bytes"], seen,
              seen / truth["bytes"] - 1, 0.001)  # fmt: skip


def of_several(reason: str) -> Any:
    def check(session: Session, load: Load, _: Any, __: float, ___: Shown) -> Iterator[Row]:
        names = (load.name, *(name for name, _ in load.beside))
        truths = [session.truth(name) for name in names]
        context = context_bytes(session)
        both = min(each["ended"] for each in truths) - max(each["began"] for each in truths)
        joules = 0.0
        for name, own in zip(names, truths, strict=True):
            shown = Shown(final_of(session), session.jobid(name))
            unobserved = shown.get("gpu_unobserved_seconds_total", reason=reason) or 0.0
            busy = shown.get("gpu_busy_seconds_total") or 0.0
            wall = own["ended"] - own["began"]
            yield Row(name, f"utilization {own['busy'] / wall:.2f}; busy told, s", 0.0, busy, busy,
                      1.0)  # fmt: skip
            yield Row(name, f"seconds untold as {reason}", both, unobserved, unobserved - both, 2.0)
            peak = shown["gpu_memory_peak_bytes"] - context
            yield Row(name, "peak beyond the context, GiB", 3 if name == names[0] else 2,
                      peak / 2**30, None, None)  # fmt: skip
            joules += shown.get("energy_joules_total", component="gpu") or 0.0
        began, ended = min(x["began"] for x in truths), max(x["ended"] for x in truths)
        true = session.recorder.joules_at(ended) - session.recorder.joules_at(began)
        yield Row(load.name, "energy of both, J", true, joules, joules / true - 1, ENERGY_LIMIT)

    return check


def final_of(session: Session) -> Samples:
    return session.scrapes[-1][1]


CHECKS: dict[str, Any] = {
    "utilization": of_utilization, "energy": of_energy, "memory": of_memory, "sm": of_sm,
    "copies": of_copies, "dram": of_dram, "fp64": of_fp64, "tensor": of_tensor,
    "orphan": of_orphan, "shared": of_several("shared"), "mps": of_several("mps"),
}  # fmt: skip


@contextlib.contextmanager
def mps() -> Iterator[bool]:
    """NVIDIA's MPS, where it starts."""
    path = f"{os.environ['PATH']}:/usr/local/nvidia/bin"
    control = shutil.which("nvidia-cuda-mps-control", path=path)
    if control is None:
        yield False
        return
    Path(MPS_DIRECTORY).mkdir(exist_ok=True)
    own = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": MPS_DIRECTORY, "PATH": path,
           "CUDA_MPS_LOG_DIRECTORY": MPS_DIRECTORY}  # fmt: skip
    started = subprocess.run([control, "-d"], env=own, timeout=10, check=False)
    try:
        yield started.returncode == 0
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run([control], input=b"quit\n", env=own, timeout=10, check=False)
        shutil.rmtree(MPS_DIRECTORY, ignore_errors=True)


def multiply(truth: Path, seconds: float = 5.0) -> None:
    """Products of fp16 matrices, with torch."""
    torch = importlib.import_module("torch")
    size = 8192
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    from_, to = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        torch.mm(left, right)
    torch.cuda.synchronize()
    first, count = time.time(), 0
    from_.record()
    while time.time() - first < seconds:
        for _ in range(20):
            torch.mm(left, right)
            count += 1
        torch.cuda.synchronize()
    to.record()
    to.synchronize()
    line = {
        "busy": from_.elapsed_time(to) / 1e3, "flops": 2.0 * size**3 * count, "first": first,
        "last": time.time(),
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
    }  # fmt: skip
    with truth.open("a") as file:
        file.write(json.dumps(line) + "\n")


def compile_load(directory: Path) -> str:
    """Returns the program's path; raises RuntimeError with the compiler's words."""
    program = directory / "gpu_load"
    source = Path(__file__).with_name("gpu_load.cu")
    try:
        done = subprocess.run(
            ["nvcc", "-O2", "-arch=native", "-o", program, source],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RuntimeError("nvcc is not there: give a program with --load") from None
    if done.returncode:
        raise RuntimeError(f"nvcc: {done.stderr.strip()[-600:]}")
    return str(program)


def open_nvml() -> Any:
    """Raises RuntimeError if there is no GPU to measure."""
    try:
        import pynvml

        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount():
            raise RuntimeError("NVML counts no GPU")
    except ImportError:
        raise RuntimeError("to measure NVIDIA GPUs, install nvidia-ml-py") from None
    except pynvml.NVMLError as error:
        raise RuntimeError(f"this machine has no NVIDIA GPU to measure: {error}") from None
    return pynvml


def run_all(session: Session, deadline: float) -> None:
    """Run what there is time for."""
    for load in LOADS:
        if time.monotonic() + load.seconds + SETTLED_SECONDS > deadline:
            print(f"{load.name}: left out, no time is left", flush=True)
            continue
        print(f"{time.strftime('%T')} {load.name}", flush=True)
        try:
            with mps() if load.mps else contextlib.nullcontext(True) as works:
                if works:
                    session.run(load)
                else:
                    print("mps: nvidia-cuda-mps-control does not start", flush=True)
        except Exception as error:  # the others go on
            print(f"{load.name}: {type(error).__name__}: {error}", flush=True)


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def results(session: Session, final: Samples) -> Iterator[Row]:
    ran = {path.stem for path in session.data.glob("*.jsonl")}
    for load in LOADS:
        if load.name not in ran:
            yield Row(load.name, "-", None, "did not run", None, None)
            continue
        try:
            yield from rows(session, load, final)
        except Exception as error:  # the others are reported
            yield Row(load.name, "-", None, f"{type(error).__name__}: {error}", None, 0.0)


def report(directory: Path, session: Session, found: Sequence[Row], cost: str) -> None:
    """Print the table, and write everything."""
    head = Row("load", "quantity", None, "shown", None, None).line().replace(" -", " truth", 1)
    text = "\n".join((head, *(each.line() for each in found), cost))
    print(text, flush=True)
    (directory / "gpu_accuracy.txt").write_text(text + "\n")
    rows_ = [{**each._asdict(), "verdict": each.verdict} for each in found]
    (directory / "gpu_accuracy.json").write_text(
        json.dumps({"rows": rows_, "cost": cost}, indent=1)
    )
    truths = {path.stem: path.read_text() for path in session.data.glob("*.jsonl")}
    recorder = session.recorder
    raw = {"energy": recorder.energy, "clocks": recorder.clocks, "others": recorder.raw,
           "instant": recorder.instant, "power": sorted(set(recorder.power)),
           "loads": truths}  # fmt: skip
    (directory / "nvml_raw.json").write_text(json.dumps(raw))
    kept = [
        {"t": at, **{name: each for name, each in samples.items() if "job_" in name}}
        for at, samples in session.scrapes
    ]
    (directory / "scrapes.json").write_text(hide(json.dumps(kept)))
    records = (path.read_text() for path in sorted(session.data.glob("*.record")))
    (directory / "records.txt").write_text("".join(records))


def main() -> int:
    if sys.argv[1:2] == ["matmul"]:
        multiply(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--load", default="", help="compiled gpu_load (default: compile it)")
    parser.add_argument("--seconds", type=float, default=190.0, help="time for everything")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    options.directory.mkdir(parents=True, exist_ok=True)
    try:
        recorder = Recorder(open_nvml())
        load = options.load or compile_load(options.directory)
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 3
    session = Session(options.directory.resolve(), os.path.abspath(load), recorder)
    try:
        for target in (recorder.run, recorder.record_gpm, session.follow):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(5)
        cpu, begun = cpu_seconds(session.exporter.pid), time.monotonic()
        run_all(session, deadline)
        time.sleep(max(1.0, min(SETTLED_SECONDS, deadline - time.monotonic() - 3)))
        used = (cpu_seconds(session.exporter.pid) - cpu) / (time.monotonic() - begun)
        text = session.scrape()
        (options.directory / "metrics.txt").write_text(hide(text))
        session.scrapes.append((time.time(), parse(text)))
        found = list(results(session, parse(text)))
        cost = f"the exporter took {used:.2%} of a core, with a GPU and a scrape every 2 s"
        report(options.directory, session, found, cost)
    finally:
        session.over.set()
        recorder.over.set()
        session.exporter.terminate()
        session.exporter.wait(10)
        shutil.rmtree(session.data, ignore_errors=True)
    return 1 if any(each.verdict == "BAD" for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
