"""The helper is asked again for a job whose device program is attached after its directory."""

import socket
import threading

import pytest

from batchjob_exporter.helper import serve
from batchjob_exporter.web.addresses import open_listeners
from collectors.gpu.allocation import AllottedDevices
from collectors.host import Host
from tests.collectors.gpu.test_allocation import PLAIN, job


class Programs:
    """Answers as the helper does: None while the cgroup has no program."""

    attached = None

    def answer(self, request):
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


def test_a_program_that_is_attached_late_is_found_within_seconds(programs, tmp_path):
    now = [100.0]
    host = Host(helper=str(tmp_path / "socket"), cgroupfs=str(tmp_path), monotonic=lambda: now[0])
    directory = tmp_path / "job_1"
    directory.mkdir()
    (directory / "cgroup.controllers").touch()
    holder = job(directories=(str(directory),))
    devices = AllottedDevices(host)
    assert devices.of_jobs([holder], PLAIN, None) == {}
    programs.attached = [[195, 2]]
    now[0] += 6
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 2)}}
    programs.attached = None  # it is not asked again at each look
    now[0] += 6
    assert devices.of_jobs([holder], PLAIN, None) == {holder.name: {(195, 2)}}
