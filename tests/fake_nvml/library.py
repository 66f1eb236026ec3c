"""Compile and control the fake NVML library of nvml.c, which documents the keys."""

import ctypes
import shutil
import subprocess
import threading
import time
from collections import deque
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
ROOT = Path(__file__).parents[2]

GPU = {
    "uuid": "GPU-aaaaaaaa-0000-4000-8000-00000000000{n}",
    "name": "NVIDIA H100 80GB HBM3",
    "minor": "{n}",
    "pci": "00000000:{n}B:00.0",
    "utilization": 50,
    "memory.total": 80_000_000_000,
    "memory.used": 1_000_000_000,
    "power": 250_000,
    "power_limit": 700_000,
    "energy": 5_000_000,
    "temperature": 40,
    "clock0": 1980,
    "clock1": 1980,
    "clock2": 2619,
    "clock3": 1545,
    "ecc0.1": 3,
    "ecc1.1": 0,
    "field74": 2_500_000_000,
    "field75": 0,
    "field82": 45,
    "field138": 10,
    "field139": 20,
    "mig": 0,
}

MIG = {"gpu_instance": 1, "compute_instance": 0, "slices": 3, "compute_slices": 3}


def compile_into(directory: Path) -> Path:
    """Compile the library to a file with the name that the loader looks for."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVML stand-in")
    path = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", path, SOURCE],
        check=True,
    )
    return path


_LOADED = """
import os.path
exists = os.path.exists
os.path.exists = lambda path: path == "/proc/driver/nvidia/version" or exists(path)
"""


def programs_environment(directory: Path, library: Path) -> dict[str, str]:
    """The environment of Python programs that find the driver loaded.

    Its state is `nvml` in the directory; see FakeNvml.
    """
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_LOADED)
    return {
        "FAKE_NVML": str(directory / "nvml"), "LD_LIBRARY_PATH": str(library.parent),
        "PYTHONPATH": f"{site}:{ROOT}",
    }  # fmt: skip


def load(path: Path) -> ctypes.CDLL:
    """Load the library: the loader then returns it for its soname."""
    return ctypes.CDLL(str(path))


class FakeNvml:
    """The file that the library reads at each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, object] = {"driver.version": "570.86.15", "count": 0}
        self.write()

    def add_gpus(self, count: int, **changes: object) -> None:
        """Set the number of GPUs; all of them support all calls."""
        self.keys["count"] = count
        for n in range(count):
            for key, value in GPU.items():
                self.keys[f"gpu{n}.{key}"] = str(value).format(n=n)
        self.set(**changes)

    def create_mig_instances(self, gpu: int, instances: dict[int, dict[str, object]]) -> None:
        """Partition a GPU: MIG device number → keys that differ from those of a 3g.40gb."""
        self.drop(*(key for key in self.keys if key.startswith(f"gpu{gpu}.mig")))
        self.keys |= {f"gpu{gpu}.mig": 1, f"gpu{gpu}.profile4": 7}
        self.drop(f"gpu{gpu}.utilization")
        for n, changes in instances.items():
            device: dict[str, object] = {
                "uuid": f"MIG-{gpu}{n}000000-0000-5000-8000-000000000000",
                "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                "memory.total": 40_000_000_000,
                "memory.used": 500_000_000,
            }
            for key, value in (device | MIG | {"gpu_instance": n + 1} | changes).items():
                self.keys[f"gpu{gpu}.mig{n}.{key}"] = value
        self.write()

    def set(self, changes: dict[str, object] | None = None, **more: object) -> None:
        """Change keys: `set({"gpu0.returns": 15})`."""
        self.keys |= (changes or {}) | more
        self.write()

    def drop(self, *keys: str) -> None:
        """Remove keys."""
        for key in keys:
            self.keys.pop(key, None)
        self.write()

    def write(self) -> None:
        """Replace the file atomically: calls may be running."""
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.keys.items()))
        new.replace(self.path)


class RunningGpus:
    """Samples of utilization as a driver takes them: each 200 ms, the last 14 s."""

    def __init__(self, fake: FakeNvml, count: int) -> None:
        self._fake = fake
        self.percent = dict.fromkeys(range(count), 0)
        self._rings = {gpu: deque[str](maxlen=70) for gpu in self.percent}
        self._newest = int((time.time() - 14) * 5)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def work(self, gpu: int, percent: int, pid: int) -> None:
        """A process keeps a GPU busy from now on."""
        with self._lock:
            self._fake.set({f"gpu{gpu}.process0": f"{pid} 5000000 COMPUTE"})
            self.percent[gpu] = percent

    def __enter__(self) -> "RunningGpus":
        self._take_samples()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            self._take_samples()

    def _take_samples(self) -> None:
        with self._lock:
            now = int(time.time() * 5)
            for number in range(self._newest + 1, now + 1):
                for gpu, ring in self._rings.items():
                    ring.append(f"{number * 200_000}:{self.percent[gpu]}")
            self._newest = now
            self._fake.set(
                {f"gpu{gpu}.samples": " ".join(ring) for gpu, ring in self._rings.items()}
            )
