"""The helper is asked again for a job whose device program is attached after its directory."""

import socket
import threading

import pytest

from batchjob_exporter.helper import serve
from batchjob_exporter.web.addresses import open_listeners
from collectors.gpu.allocation import AllottedDevices
from collectors.gpu.devices import GpuTable
from collectors.host import Host
from tests.collectors.gpu.test_allocation import PLAIN, SLICED, job


class Programs:
    """Answers as the helper does: None while the cgroup has no program."""

    attached = None
    asked = ()

    def answer(self, request):
        self.asked = request["numbers"]
        return {"devices": self.attached}


@pytest.fixture
def programs(tmp_path):
    (listener,) = open_listeners((f"unix:{tmp_path}/socket",))
    answers = Programs()
    thread = threading.Thread(target=serve, args=(listener, answers, str(tmp_path)))
    thread.start()
    yield answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def holder(tmp_path):
    """A job on cgroup v2."""
    directory = tmp_path / "job_1"
    directory.mkdir()
    (directory / "cgroup.controllers").touch()
    return job(directories=(str(directory),))


def test_the_helper_is_asked_of_instances_that_exist(programs, holder, tmp_path):
    """The driver of every NVIDIA GPU, MIG or not, numbers all instances of 32 GPUs."""
    instances = [(gpu, number, part) for gpu in range(32) for number in range(15)
                 for part in (None, *range(8))]  # fmt: skip
    host = Host(helper=str(tmp_path / "socket"), cgroupfs=str(tmp_path))
    of_whole_gpus = GpuTable(PLAIN.gpus, dict(enumerate(instances, 3)))
    AllottedDevices(host).of_jobs([holder], of_whole_gpus, 240)
    assert programs.asked == [[195, minor] for minor in range(len(PLAIN.gpus))]
    of_instances = GpuTable(SLICED.gpus, dict(enumerate(instances, 3)))
    AllottedDevices(host).of_jobs([holder], of_instances, 240)
    assert len(programs.asked) == 2 + 2 * 2  # two GPUs; each instance and its only part


def test_a_program_that_is_attached_late_is_found_within_seconds(programs, holder, tmp_path):
    now = [100.0]
    host = Host(helper=str(tmp_path / "socket"), cgroupfs=str(tmp_path), monotonic=lambda: now[0])
    devices = AllottedDevices(host)
    assert devices.of_jobs([holder], PLAIN, None) == {}
    programs.attached = [[195, 2]]
    now[0] += 6
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 2)}}
    programs.attached = None  # it is not asked again at each look
    now[0] += 6
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 2)}}


def test_a_later_run_of_a_job_does_not_have_the_devices_of_the_one_before(
    programs, holder, tmp_path
):
    host = Host(helper=str(tmp_path / "socket"), cgroupfs=str(tmp_path), monotonic=lambda: 100.0)
    devices = AllottedDevices(host)
    programs.attached = [[195, 0]]
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 0)}}
    directory = tmp_path / "job_1"
    directory.rename(tmp_path / "removed")
    directory.mkdir()
    (directory / "cgroup.controllers").touch()
    programs.attached = [[195, 1]]
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 1)}}
