"""Signals that the main thread waits for."""

import os
import signal

import pytest

from batchjob.runtime.signals import Signals


@pytest.fixture
def signals():
    handler = signal.getsignal(signal.SIGUSR1)
    yield Signals(signal.SIGUSR1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, handler)


def test_a_signal_that_comes_before_the_wait_ends_it(signals):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signals.wait(20) == [signal.SIGUSR1]


def test_without_a_signal_the_wait_ends_after_its_time(signals):
    assert signals.wait(0.01) == []
