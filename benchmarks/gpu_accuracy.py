"""What the exporter shows of jobs on a real NVIDIA GPU, beside what they did.

    python -m benchmarks.gpu_accuracy DIRECTORY [--load PROGRAM] [--seconds 310]

Runs each load of `LOADS` as a job of `batchjob run`, reads the exporter's metrics when all have
ended, and prints a line for each quantity: the truth, what is shown, and the difference. The truth
is that of CUDA's events and of the wall clock (benchmarks/gpu_load.cu, which nvcc compiles, and
torch for matrix products); energy is that of the board's own counter while the job ran. Everything
is also in DIRECTORY as JSON, with the exporter's metrics every 2 s and NVML's raw answers, without
UUIDs. A load that fails is reported, and the others go on. Then `batchjob run --gpus` is tried
(benchmarks/gpu_runs.py).
"""

import argparse
import contextlib
import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_runs
from benchmarks.gpu_session import (
    ENERGY_LIMIT,
    MPS_DIRECTORY,
    ROOT,
    UTILIZATION_LIMIT,
    Load,
    Recorder,
    Row,
    Samples,
    Session,
    Shown,
    hide,
    of_energy,
    of_utilization,
    parse,
)

SETTLED_SECONDS = 44.0  # after which the exporter has given the last samples to the last job
PIPE_FLOPS_PER_CYCLE = 4096  # dense fp16 products on each multiprocessor of a GH100

DUTY = '"$LOAD" duty "$TRUTH" percent={} seconds={}'
SPIKE = '"$LOAD" spike "$TRUTH" part={}'
USE = ("utilization", "energy")
LOADS = (  # the first are those that no other measures
    Load("duty33", DUTY.format(33, 5), 6),
    Load("one_second", DUTY.format(100, 1), 2),
    Load("spike", SPIKE.format(0.6), 4, ("memory",)),
    Load("small_spike", SPIKE.format(0.05), 4, ("memory",)),
    Load("owner", DUTY.format(100, 5), 6, (*USE, "owner"), (("claimer", "sleep 4"),)),
    Load("claim_a", "sleep 6", 7, ("claims",), (("claim_b", "sleep 6"),),
         of_no_job=DUTY.format(100, 3)),
    Load("shared_a", DUTY.format(100, 5) + " gib=3", 7, ("shared",),
         (("shared_b", DUTY.format(25, 5) + " gib=2"),)),
    # A job of which no source names its GPU has it until its last process ends.
    Load("loop", f"for i in 1 2 3; do {DUTY.format(100, 0.5)}; sleep 1; done; "
         f"{DUTY.format(100, 0.5)}", 9),
    Load("mps_a", DUTY.format(100, 5) + " gib=3", 14, ("mps",),
         (("mps_b", DUTY.format(50, 5) + " gib=2"),), mps=True, pause=6),
    # Samples within 5 s of processes under MPS are nobody's.
    Load("after_mps", DUTY.format(100, 3), 4, pause=5.5),
    Load("copies", '"$LOAD" copy "$TRUTH" seconds=3', 5, (*USE, "copies")),
    Load("orphan", '"$LOAD" orphan "$TRUTH" gib=4 parent=1 child=5; sleep 5.5', 8, ("orphan",)),
    Load("one_block", DUTY.format(100, 3) + " blocks=1", 5, (*USE, "sm")),
    Load("fp64", '"$LOAD" fp64 "$TRUTH" seconds=3', 5, (*USE, "fp64")),
    Load("duty82", DUTY.format(82, 5), 6),
    Load("duty15", DUTY.format(15, 5), 6),
    Load("fp16", '"$PYTHON" -m benchmarks.gpu_accuracy matmul "$TRUTH"', 20, (*USE, "tensor")),
    Load("duty97", DUTY.format(97, 5), 6, (*USE, "sm")),
    Load("dram", '"$LOAD" copy "$TRUTH" way=d2d seconds=3', 5, (*USE, "dram")),
)  # fmt: skip


def rows(session: Session, load: Load, final: Samples) -> Iterator[Row]:
    """The rows of a load, as far as its figures are there."""
    shown = Shown(final, session.jobid(load.name))
    truth = session.truth(load.name)
    wall = truth["ended"] - truth["began"]
    for check in load.checks:
        try:
            figures = FIGURES.get(check)
            if figures:
                yield from figures(session, load.name, truth, wall, shown)
            else:
                yield from CHECKS[check](session, load, truth, wall, shown)
        except KeyError as error:
            yield Row(load.name, check, None, f"absent ({error.args[0]})", None, 0.0)


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
    active = shown["gpu_sm_active_seconds_total"] / shown["gpu_profiled_seconds_total"]
    yield Row(load.name, "sm_active", truth["busy"] / wall, active, None, None)
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


def of_owner(session: Session, load: Load, truth: Any, _: float, own: Shown) -> Iterator[Row]:
    """A job whose environment alone names the GPU that this job is seen on."""
    other = Shown(session.scrapes[-1][1], session.jobid(load.beside[0][0]))
    claimed = session.truth(load.beside[0][0])
    both = min(truth["ended"], claimed["ended"]) - max(truth["began"], claimed["began"])
    for name, least in (("shared", both), ("claimed", 0.0)):
        seen = other.get("gpu_unobserved_seconds_total", reason=name) or 0.0
        yield Row("claimer", f"seconds untold as {name}", least, seen, seen - least, None)
        seen = own.get("gpu_unobserved_seconds_total", reason=name) or 0.0
        yield Row(load.name, f"seconds untold as {name}", 0.0, seen, seen, 1.0)
    for name in ("busy", "observed"):
        seen = other.get(f"gpu_{name}_seconds_total") or 0.0
        limit = 0.2 if name == "busy" else None
        yield Row("claimer", f"{name} told, s", 0.0, seen, seen, limit)
    joules = other.get("energy_joules_total", component="gpu") or 0.0
    yield Row("claimer", "energy, J", None, joules, None, None)


def of_claims(session: Session, load: Load, _: Any, __: float, ___: Shown) -> Iterator[Row]:
    """Two jobs whose environments name the GPU, while a process of no job uses it."""
    names = (load.name, *(name for name, _ in load.beside))
    truths = [session.truth(name) for name in names]
    both = min(each["ended"] for each in truths) - max(each["began"] for each in truths)
    free = session.truth(f"{load.name}_of_no_job")["busy"]
    for name in names:
        shown = Shown(session.scrapes[-1][1], session.jobid(name))
        claimed = shown.get("gpu_unobserved_seconds_total", reason="claimed") or 0.0
        yield Row(name, "seconds untold as claimed", both, claimed, claimed - both, 1.0)
        busy = shown.get("gpu_busy_seconds_total") or 0.0
        yield Row(name, "busy told, s", 0.0, busy, busy, 0.2)
        seen = shown.get("free_gpu_busy_seconds_total")
        yield Row(name, "busy seconds of free GPUs", free,
                  "absent" if seen is None else seen, None if seen is None else seen - free,
                  0.3)  # fmt: skip


def of_several(reason: str) -> Any:
    def check(session: Session, load: Load, _: Any, __: float, ___: Shown) -> Iterator[Row]:
        names = (load.name, *(name for name, _ in load.beside))
        truths = [session.truth(name) for name in names]
        context = context_bytes(session)
        both = min(each["ended"] for each in truths) - max(each["began"] for each in truths)
        joules = 0.0
        for name, own in zip(names, truths, strict=True):
            shown = Shown(session.scrapes[-1][1], session.jobid(name))
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


FIGURES = {"utilization": of_utilization, "energy": of_energy}
CHECKS: dict[str, Any] = {
    "memory": of_memory, "sm": of_sm,
    "copies": of_copies, "dram": of_dram, "fp64": of_fp64, "tensor": of_tensor,
    "orphan": of_orphan, "owner": of_owner, "claims": of_claims, "shared": of_several("shared"),
    "mps": of_several("mps"),
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
    directory.mkdir(exist_ok=True)
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
        if time.monotonic() + load.pause + load.seconds + SETTLED_SECONDS > deadline:
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
    with gzip.open(directory / "scrapes.json.gz", "wt") as file:
        file.write(hide(json.dumps(kept)))
    records = (path.read_text() for path in sorted(session.data.glob("*.record")))
    (directory / "records.txt").write_text("".join(records))


def main() -> int:
    if sys.argv[1:2] == ["matmul"]:
        multiply(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--load", default="", help="compiled gpu_load (default: compile it)")
    parser.add_argument("--seconds", type=float, default=310.0, help="time for everything")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    # Commands of batchjob start others elsewhere.
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    options.directory.mkdir(parents=True, exist_ok=True)
    try:
        recorder = Recorder(open_nvml())
        load = options.load or compile_load(options.directory / "work")
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 3
    session = Session(options.directory.resolve(), os.path.abspath(load), recorder)
    runs = gpu_runs.Runs(session)
    try:
        for target in (recorder.run, recorder.record_gpm, session.follow):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(5)
        cpu, begun = cpu_seconds(session.exporter.pid), time.monotonic()
        runs.run()
        run_all(session, deadline)
        time.sleep(max(1.0, min(SETTLED_SECONDS, deadline - time.monotonic() - 3)))
        used = (cpu_seconds(session.exporter.pid) - cpu) / (time.monotonic() - begun)
        text = session.scrape()
        (options.directory / "metrics.txt").write_text(hide(text))
        session.scrapes.append((time.time(), parse(text)))
        found = [*runs.rows(), *results(session, parse(text))]
        cost = f"the exporter took {used:.2%} of a core, with a GPU and a scrape every 2 s"
        report(options.directory, session, found, cost)
    finally:
        session.over.set()
        recorder.over.set()
        runs.close()
        for daemon in (session.exporter, session.helper):
            daemon.terminate()
            daemon.wait(10)
        shutil.rmtree(session.data, ignore_errors=True)
    return 1 if any(each.verdict == "BAD" for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
