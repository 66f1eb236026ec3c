"""The check that no test leaves a process behind."""

import os
import subprocess
import uuid

import pytest

from tests.helpers import leftovers
from tests.helpers.leftovers import ChildrenOfTests
from tests.helpers.waiting import until

SLEEPER = ["sleep", "600"]


def test_child_that_a_test_leaves_is_named_and_ended():
    children = ChildrenOfTests()
    left = r"left processes behind: \['\d+: sleep 600 \(\S+::test_child_that_a_test_leaves"
    with pytest.raises(AssertionError, match=left), children.module():
        process = subprocess.Popen(SLEEPER)
    assert process.wait() == -9


def test_child_of_a_fixture_of_the_session_may_outlive_a_module():
    children = ChildrenOfTests()
    with children.module(), children.fixture_set_up("session"):
        process = subprocess.Popen(SLEEPER)
    process.kill()
    process.wait()


def test_process_without_a_parent_is_found_by_its_session(monkeypatch):
    session = str(uuid.uuid4())
    monkeypatch.setenv(leftovers.SESSION_VARIABLE, session)
    subprocess.run(["sh", "-c", "setsid sleep 600 &"], check=True)
    (orphan,) = until(lambda: leftovers.session_processes(session), "the orphan")
    assert leftovers.end_leftovers({orphan}, patience=0.1) != []
    until(lambda: not os.path.exists(f"/proc/{orphan.pid}/cmdline") or not orphan.command_line())
