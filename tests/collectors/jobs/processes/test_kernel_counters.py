"""The helper's counters go on when the helper or the exporter begins again."""

import json
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.quantities.job import NETWORK_RECEIVE_BYTES, NETWORK_RECEIVE_ERRORS
from batchjob.quantities.reading import EMPTY_CGROUP_READING, ProcessReading, job_reading
from batchjob_exporter.helper import serve
from batchjob_exporter.web.addresses import open_listeners
from collectors.host import Host
from collectors.jobs.processes.kernel_counters import (
    SOCKETS,
    ContinuedCounters,
    KernelCounters,
    KernelState,
)
from collectors.kernel.client import HelperClient

USED = st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(["go on", "restart", "reload"])))


@given(USED)
def test_no_counter_falls_or_counts_anything_twice(steps):
    """`restart`: of the helper, which then knows nothing; `reload`: of the exporter."""
    counters, instance, value, used = ContinuedCounters(), 0, 0, 0
    shown = 0.0
    for gain, what in steps:
        if what == "restart":
            instance, value = instance + 1, 0
        if what == "reload":
            counters = ContinuedCounters.from_saved(json.loads(json.dumps(counters.saved())))
        value, used = value + gain, used + gain
        counters.update(str(instance), [value])
        assert shown <= counters.shown[0] <= used
        shown = counters.shown[0]
    if all(what != "restart" for _, what in steps) and steps:
        assert shown == used


def test_what_proc_has_told_before_the_helper_is_not_added_again():
    counters = ContinuedCounters(shown=[100.0])
    assert counters.update("a", [70])
    assert counters.shown == [100.0]
    assert counters.update("a", [90])
    assert counters.shown == [120.0]
    assert not counters.update("b", [0])
    assert counters.shown == [120.0]


class FixedCounters:
    """Answers as the helper does where only the network is counted."""

    instance = "a"
    traffic = ((10, 1, 20, 2), (99, 9, 99, 9))

    def answer(self, request):
        (ids,) = request["jobs"].values()
        numbers = {"process-io": None, "network": [self.traffic] * len(ids)}
        earlier = [] if self.traffic else [0]
        return {"instance": self.instance, "numbers": numbers, "problems": {}, "earlier": earlier}


@pytest.fixture
def answers():
    return FixedCounters()


@pytest.fixture
def helper_socket(tmp_path, answers):
    (listener,) = open_listeners((f"unix:{tmp_path}/socket",))
    thread = threading.Thread(target=serve, args=(listener, answers, str(tmp_path)))
    thread.start()
    yield str(tmp_path / "socket")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_traffic_of_sockets_has_bytes_and_no_errors(helper_socket, tmp_path):
    host = Host(helper=helper_socket, cgroupfs=str(tmp_path))
    counted, state = (
        KernelCounters(host, io=True, network=True),
        KernelState({f"{tmp_path}/job": 7}),
    )
    counted.refresh([state], has_ended=False)
    counted.update(state)
    reading = job_reading(
        None, None, EMPTY_CGROUP_READING, ProcessReading(network=counted.interfaces(state))
    )
    ((name, received),) = NETWORK_RECEIVE_BYTES.read(reading).items()
    assert (name, NETWORK_RECEIVE_BYTES.read_each(received)) == (SOCKETS, 10)
    assert NETWORK_RECEIVE_ERRORS.read_each(received) is None
    assert counted.shown(state.io) is None
    assert not counted.counts_io


def test_traffic_that_the_helper_cannot_tell_is_absent_and_counted(
    helper_socket, tmp_path, answers
):
    """A job of cgroup v1 that was counted by an earlier helper keeps its figure for a minute."""
    seconds = [1000.0]
    host = Host(helper=helper_socket, cgroupfs=str(tmp_path), monotonic=lambda: seconds[0])
    counted = KernelCounters(host, io=True, network=True)
    state = KernelState({f"{tmp_path}/job": 7})
    gaps = []
    for answers.instance, answers.traffic in (("a", FixedCounters.traffic), ("b", None)):
        for _ in range(2):
            seconds[0] += 31
            counted.refresh([state], has_ended=False)
            gaps.append(counted.update(state))
            is_shown = counted.interfaces(state) is not None
            assert is_shown is (gaps[2:] in ([], ["helper_late"]))
    assert gaps == ["", "", "helper_late", ""]


def test_a_helper_of_another_version_is_as_none(helper_socket, tmp_path, answers, monkeypatch):
    monkeypatch.setattr(answers, "answer", lambda request: {"instance": "a", "network": {"7": []}})
    client = HelperClient(Host(helper=helper_socket, cgroupfs=str(tmp_path)))
    assert client.job_counters([(f"{tmp_path}/job", 7)]) is None


def test_taking_a_job_s_counters_costs_the_same_however_many_jobs_there_are(
    helper_socket, tmp_path
):
    def seconds_for_a_hundred(jobs):
        states = [KernelState({f"{tmp_path}/job_{number}": number}) for number in range(jobs)]
        counted = KernelCounters(
            Host(helper=helper_socket, cgroupfs=str(tmp_path)), io=True, network=True
        )
        counted.refresh(states, has_ended=False)
        begin = time.thread_time()
        for state in states[:100]:
            counted.update(state)
        assert all(counted.interfaces(state) for state in states[:100])
        return time.thread_time() - begin

    few = min(seconds_for_a_hundred(100) for _ in range(3))
    many = min(seconds_for_a_hundred(5000) for _ in range(3))
    assert many < 10 * few
