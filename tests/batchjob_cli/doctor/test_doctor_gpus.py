"""What doctor says of GPUs; the driver that answers is the stand-in of tests/fake_nvml."""

import json
import os
import sys

import pytest

from batchjob_cli.doctor import gpus
from batchjob_cli.doctor.finding import ExaminedNode, run_checks
from tests.helpers.processes import run

GPU_NODE = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15",
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
}


def findings(host):
    return run_checks(ExaminedNode(host), gpus.CHECKS)


def test_node_without_gpus_has_no_findings(machine):
    assert findings(machine()) == {}


def test_inaccessible_device_files_are_reported(machine, monkeypatch):
    host = machine(GPU_NODE)
    assert findings(host)["permission"].result == "ok"
    monkeypatch.setattr(gpus.os, "access", lambda path, mode: "nvidia1" not in path)
    found = findings(host)["permission"]
    assert (found.result, found.seen.count("nvidia1")) == ("missing", 1)


def test_device_order_unlike_pci_order_is_a_warning(machine):
    def information(address, minor):
        return {f"proc/driver/nvidia/gpus/{address}/information": f"Device Minor: \t {minor}\n"}

    same = information("0000:3b:00.0", 0) | information("0000:86:00.0", 1)
    crossed = information("0000:3b:00.0", 1) | information("0000:86:00.0", 0)
    assert findings(machine(GPU_NODE | same))["order"].result == "ok"
    found = findings(machine(GPU_NODE | crossed))["order"]
    assert (found.result, found.seen) == ("warning", "in PCI order the GPUs' device files are 1, 0")


@pytest.mark.parametrize(("restricted", "result"), [(0, "ok"), (1, "warning")])
def test_driver_that_lets_only_administrators_profile_is_a_warning(machine, restricted, result):
    parameters = f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {restricted}\n"
    host = machine(GPU_NODE | {"proc/driver/nvidia/params": parameters})
    assert findings(host)["profiling"].result == result


CHECK_PROGRAM = """
import json
from batchjob_cli.doctor import gpus
gpus._TIMEOUT_SECONDS = 2.0
host = gpus.ExaminedNode().host.__class__(procfs={procfs!r}, dev={dev!r})
found = gpus._check_readings(gpus.ExaminedNode(host))
print(json.dumps(found and [found.result, found.seen]))
import os, sys
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def check_readings(machine, tmp_path):
    """What doctor says of the fake driver, in a process that has loaded it."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    from tests.fake_nvml.library import FakeNvml, compile_into

    host = machine(GPU_NODE)
    library = compile_into(tmp_path)
    fake = FakeNvml(tmp_path / "nvml")

    def check():
        done = run(
            [sys.executable, "-c", CHECK_PROGRAM.format(procfs=host.procfs, dev=host.dev)],
            env=os.environ | {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(fake.path)},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    check.fake = fake
    return check


def test_number_of_answering_gpus(check_readings):
    check_readings.fake.add_gpus(2)
    assert check_readings() == ["ok", "2 of 2 GPUs answer"]
    check_readings.fake.create_mig_instances(1, {0: {}, 1: {}})
    assert check_readings() == ["ok", "2 of 2 GPUs answer; 1 in MIG mode with 2 instances"]


def test_failing_gpus_are_reported(check_readings):
    check_readings.fake.add_gpus(2)
    check_readings.fake.set({"gpu1.returns": 15})
    assert check_readings() == ["warning", "1 of 2 GPUs answer; GPU 1: gpu_is_lost"]
    check_readings.fake.set({"nvmlInitWithFlags.returns": 18})
    assert check_readings()[0] == "missing"


def test_hanging_driver_is_reported(check_readings):
    check_readings.fake.add_gpus(1)
    check_readings.fake.set({"gpu0.nvmlDeviceGetName.hangs": 1})
    assert check_readings() == ["missing", "the driver did not answer within 2 s"]
