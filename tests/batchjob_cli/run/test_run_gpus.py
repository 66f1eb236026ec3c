"""`batchjob run --gpus`; the driver is the stand-in of tests/fake_nvml."""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from batchjob_cli.run.gpus import read_gpus
from collectors.host import Host
from tests.fake_nvml.library import FakeNvml, compile_into, programs_environment
from tests.helpers.waiting import until

TELL = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES:$ROCR_VISIBLE_DEVICES"')
HOLD = ("sh", "-c", "echo ready; exec sleep 600")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    return compile_into(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(batchjob, nvml_library, tmp_path) -> Iterator[FakeNvml]:
    """The driver that all runs of the test see, with two GPUs of its own."""
    batchjob.environment |= programs_environment(tmp_path, nvml_library)
    fake = FakeNvml(tmp_path / "nvml")
    fake.add_gpus(2)
    fake.set({f"gpu{n}.uuid": f"GPU-{uuid.uuid4()}" for n in range(2)})
    yield fake
    for record in batchjob.records():
        if record["state"] in ("RUNNING", "PENDING"):
            batchjob("stop", "--grace=0", record["jobid"])


def runs_by_name(batchjob) -> dict[str, dict]:
    return {record["name"]: record for record in batchjob.records()}


def states(batchjob) -> dict[str, str]:
    return {name: record["state"] for name, record in runs_by_name(batchjob).items()}


def reason(batchjob, name: str) -> str:
    return runs_by_name(batchjob)[name].get("reason", "")


def test_command_sees_its_gpus_by_uuid(batchjob, driver):
    done = batchjob("run", "--quiet", "--gpus=1", "--", *TELL)
    assert (done.stdout, done.stderr) == (f"{driver.keys['gpu0.uuid']}:\n", "")
    record = batchjob.record()
    assert (record["allocated_gpus"], record["gpu_list"]) == (1, "0")
    assert "GPUs 0" in batchjob("job", record["jobid"]).stdout
    (listed,) = json.loads(batchjob("jobs", "--format=json").stdout)
    assert (listed["allocated_gpus"], listed["allocated_resources"]) == (1, "GPUs 0")


def test_each_run_has_gpus_of_its_own(batchjob, driver):
    for name in ("first", "second"):
        started = batchjob("run", "--detach", "--gpus=1", "--name", name, "--", *HOLD)
        assert "limits: 1 GPU: " in started.stderr
    assert {each["gpu_list"] for each in batchjob.records()} == {"0", "1"}
    waits = batchjob("run", "--detach", "--gpus=1", "--name", "third", "--", *HOLD)
    assert "third is pending; 0 of 2 GPUs free, 1 asked for; limits: none" in waits.stderr
    batchjob("stop", "--grace=0", "first")
    until(lambda: "gpu_list" in runs_by_name(batchjob)["third"], "the third run", 30)
    found = runs_by_name(batchjob)
    assert found["third"]["gpu_list"] == found["first"]["gpu_list"]


def test_runs_wait_in_the_order_of_their_arrival(batchjob, driver):
    batchjob("run", "--detach", "--gpus=1", "--name=one", "--", *HOLD)
    batchjob("run", "--detach", "--gpus=2", "--name=both", "--", *HOLD)
    later = batchjob("run", "--detach", "--gpus=1", "--name=later", "--", *HOLD)
    assert "other runs have waited longer for GPUs" in later.stderr
    batchjob("stop", "--grace=0", "one")
    until(lambda: states(batchjob)["both"] == "RUNNING", "the run with two GPUs", 30)
    assert reason(batchjob, "both") == "None"
    until(lambda: reason(batchjob, "later").startswith("0 of 2 GPUs free"), "its turn", 30)


@pytest.mark.parametrize("attempt", range(3))
def test_two_runs_at_once_for_the_last_gpu(batchjob, driver, attempt):
    driver.set(count=1)
    both = [batchjob.start("run", "--gpus=1", "--name", name, "--", *HOLD) for name in "ab"]
    until(lambda: sorted(states(batchjob).values()) == ["PENDING", "RUNNING"], "one of them", 30)
    until(lambda: any("0 of 1 GPUs free" in reason(batchjob, name) for name in "ab"))
    assert [each.get("gpu_list") for each in batchjob.records()].count("0") == 1
    for process in both:
        process.send_signal(signal.SIGTERM)


def test_killed_run_frees_its_gpus(batchjob, driver):
    batchjob("run", "--detach", "--gpus=2", "--name=first", "--", *HOLD)
    os.kill(runs_by_name(batchjob)["first"]["supervisor"]["pid"], signal.SIGKILL)
    done = batchjob("run", "--quiet", "--gpus=2", "--", *TELL)
    assert done.stdout.count("GPU-") == 2


def test_gpu_that_is_lost_while_a_run_waits_for_it(batchjob, driver):
    batchjob("run", "--detach", "--gpus=2", "--name=first", "--", *HOLD)
    batchjob("run", "--detach", "--gpus=2", "--name=both", "--", *HOLD)
    driver.set({"gpu1.returns": 15})  # NVML_ERROR_GPU_IS_LOST
    batchjob("stop", "--grace=0", "first")
    lost = "1 of 2 GPUs free, 2 asked for (1 does not answer)"
    until(lambda: reason(batchjob, "both") == lost, "its reason", 30)
    driver.drop("gpu1.returns")
    until(lambda: states(batchjob)["both"] == "RUNNING", "both GPUs", 60)


def test_gpu_that_is_lost_before_a_delayed_run_starts(batchjob, driver):
    batchjob("run", "--detach", "--at=+8s", "--gpus=1", "--name=later", "--", *HOLD)
    driver.set({"gpu0.returns": 15})
    until(lambda: "gpu_list" in runs_by_name(batchjob)["later"], "its start", 60)
    assert runs_by_name(batchjob)["later"]["gpu_list"] == "1"


def test_what_the_machine_does_not_have_is_refused(batchjob, driver):
    cpus, memory = os.cpu_count(), "this machine has "
    for option, message in (
        ("--gpus=9", "--gpus: 9 asked for, this machine has 2 whole GPUs"),
        ("--cpus=4000", f"--cpus: 4000 asked for, this machine has {cpus}"),
        ("--memory=100T", f"--memory: 100 TiB asked for, {memory}"),
        ("--gpus=0", "expected a whole number of at least 1, got '0'"),
        ("--gpus=half", "expected a whole number of at least 1, got 'half'"),
    ):
        done = batchjob("run", option, "--", "true")
        assert (done.returncode, done.stdout) == (2, ""), option
        assert message in done.stderr
    driver.create_mig_instances(1, {0: {}})
    done = batchjob("run", "--gpus=2", "--", "true")
    assert "2 asked for, this machine has 1 whole GPU\n" in done.stderr
    assert batchjob.records() == []


def test_driver_that_does_not_answer(batchjob, driver):
    driver.set({"nvmlInitWithFlags.returns": 18})
    done = batchjob("run", "--gpus=1", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (125, 1)
    assert "batchjob: --gpus: " in done.stderr
    driver.drop("nvmlInitWithFlags.returns")
    driver.set({"gpu0.nvmlDeviceGetName.hangs": 1})
    started = time.monotonic()
    done = batchjob("run", "--gpus=1", "--", "true")
    assert (done.returncode, time.monotonic() - started > 5) == (125, True)
    assert done.stderr.startswith("batchjob: --gpus: the GPU drivers do not answer: ")
    assert done.stderr.count("\n") == 1


def test_machine_without_gpus(batchjob):
    done = batchjob("run", "--gpus=1", "--", "true")
    assert done.returncode == 2
    assert "--gpus: 1 asked for, this machine has 0 whole GPUs" in done.stderr


def test_amd_gpus_are_named_as_rocm_does(tmp_path):
    for number, unique in ((0, "unique_id"), (1, "")):
        device = tmp_path / f"devices/0000:c{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "driver").symlink_to("/sys/bus/pci/drivers/amdgpu")
        if unique:
            (device / unique).write_text(f"{uuid.uuid4().int >> 64:016x}\n")
        card = tmp_path / f"class/drm/card{number}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    gpus, counts, variables, problem = read_gpus(Host(sysfs=str(tmp_path), procfs=str(tmp_path)))
    assert (counts, problem) == ({"amd": 2}, "")
    assert {gpu.variable for gpu in gpus} == {"ROCR_VISIBLE_DEVICES"}
    assert (gpus[0].word[:4], gpus[1].word) == ("GPU-", "1")
    assert variables == ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]
