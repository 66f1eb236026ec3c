"""A node with NVIDIA GPUs: an NVML stand-in behind pynvml's own loader."""

import time

import pytest

from collectors.gpu.nvidia import NvidiaGpus
from collectors.host import Host
from tests.fake_nvml import library
from tests.helpers.waiting import until


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The library, in memory for the whole session."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    path = library.compile_into(tmp_path_factory.mktemp("nvml"))
    return path, library.load(path)


@pytest.fixture
def fake_nvml(nvml_library, tmp_path, monkeypatch):
    """The state of the driver; empty until GPUs are added."""
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
    return library.FakeNvml(tmp_path / "nvml")


class Clock:
    """A monotonic clock that can be advanced."""

    def __init__(self):
        self.offset_seconds = 0.0

    def __call__(self):
        return time.monotonic() + self.offset_seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def host(tmp_path, clock):
    """A machine whose NVIDIA driver is loaded."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 570.86.15\n")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("gpu01.example.org\n")
    (tmp_path / "sys").mkdir()
    return Host(procfs=str(tmp_path / "proc"), sysfs=str(tmp_path / "sys"), monotonic=clock)


@pytest.fixture
def driver(fake_nvml, host):
    """A driver that reads every 20 ms."""
    gpus = NvidiaGpus(host, 0.02)
    yield gpus
    gpus.stop()


@pytest.fixture
def eventually():
    """Wait until something holds; returns it."""
    return until
