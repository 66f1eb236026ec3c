"""Signals that the main thread waits for."""

import os
import signal

import pytest

from batchjob.runtime.signals import Signals
from tests.helpers.waiting import scaled


@pytest.fixture
def signals():
    handler = signal.getsignal(signal.SIGUSR1)
    yield Signals(signal.SIGUSR1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, handler)


def test_wait_returns_signal_received_before(signals):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signals.wait(scaled(20)) == [signal.SIGUSR1]


def test_wait_times_out_without_signal(signals):
    assert signals.wait(0.01) == []
