"""Time limits of tests grow with the load, or by one environment variable."""

import os
import sys

import pytest

from tests.helpers.checkout import REPOSITORY
from tests.helpers.processes import run
from tests.helpers.waiting import until

PROGRAM = "from tests.helpers.waiting import scaled; print(scaled(10))"


def scaled_ten(value):
    environment = {**os.environ, "BATCHJOB_TEST_TIME_SCALE": value}
    done = run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_limits_are_multiplied_by_the_variable():
    assert [scaled_ten(value) for value in ("1", "2.5")] == [10, 25]


def test_without_the_variable_limits_are_at_least_those_of_an_idle_machine():
    assert scaled_ten("") >= 10


def test_until_returns_the_answer():
    answers = iter([None, 0, "it"])
    assert until(lambda: next(answers), interval=0) == "it"


def test_until_says_what_did_not_happen():
    with pytest.raises(AssertionError, match="the answer: not within"):
        until(lambda: False, "the answer", timeout=0, interval=0)


def test_whole_runs_set_the_variable_from_the_load():
    text = (REPOSITORY / ".ci/run").read_text()
    assert "/proc/loadavg" in text.partition("BATCHJOB_TEST_TIME_SCALE=$(")[2].partition("\n")[0]
    assert "export BATCHJOB_TEST_TIME_SCALE" in text
