"""A token bucket for each client."""

from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.rate_limit import RateLimiter
from tests.helpers.clock import Clock


def test_burst_is_followed_by_steady_rate():
    clock = Clock()
    rate = RateLimiter(2, 3, clock=clock)
    assert [rate.acquire("alice") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rate.acquire("bob") == 0
    clock.now += 0.5
    assert [rate.acquire("alice") for _ in range(2)] == [0, 0.5]
    clock.now += 3600
    assert [rate.acquire("alice") for _ in range(4)] == [0, 0, 0, 0.5]


def test_memory_is_bounded():
    rate = RateLimiter(1, 1, max_keys=100)
    assert not any(rate.acquire(number) for number in range(1000))
    assert len(rate) == 100
    assert rate.acquire(999) > 0


def test_zero_rate_means_no_limit():
    rate = RateLimiter(0, 1)
    assert not any(rate.acquire("alice") for _ in range(1000))
    assert len(rate) == 0


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0.1, 50), st.integers(1, 20))
def test_rate_and_burst_are_never_exceeded(pauses, per_second, burst):
    clock = Clock()
    rate = RateLimiter(per_second, burst, clock=clock)
    acquired_times = []
    for pause in pauses:
        clock.now += pause
        if not rate.acquire("x"):
            acquired_times.append(clock.now)
        for first, begun in enumerate(acquired_times):
            most = burst + (clock.now - begun) * per_second
            assert len(acquired_times) - first <= most + 1e-6
