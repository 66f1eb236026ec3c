"""Time limits of tests, which grow with the load of the machine.

No test fails because the machine is busy: a limit only ends a wait for what will never come.
`BATCHJOB_TEST_TIME_SCALE` multiplies all limits; `.ci/run` sets it from the load. Without it, it
is the load per CPU when the tests start, at least 1.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def _time_scale() -> float:
    """The factor of all time limits; ValueError if the variable is not a number."""
    given = os.environ.get("BATCHJOB_TEST_TIME_SCALE")
    return float(given) if given else max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


TIME_SCALE = _time_scale()


def scaled(seconds: float) -> float:
    """A time limit in seconds for this machine as it is loaded."""
    return seconds * TIME_SCALE


def until(
    condition: Callable[[], T | None],
    what: str = "the condition",
    timeout: float = 20.0,
    interval: float = 0.02,
) -> T:
    """Ask again until the answer is true, and return it; AssertionError when time is up.

    `timeout` is in seconds on an idle machine. The pauses grow to half a second, so that who is
    asked does not count it as too many requests.
    """
    limit = scaled(timeout)
    deadline = time.monotonic() + limit
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit:g} s")
        time.sleep(interval)
        interval = max(interval, min(1.5 * interval, 0.5))
