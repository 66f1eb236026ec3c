"""Site settings for all runs: defaults, maximum time limit, queue, log; CPU binding."""

import os
import re
import signal

import pytest

from tests.helpers.waiting import until

SLEEP = ("sh", "-c", "echo ready; exec sleep 600")  # ends with its supervisor


@pytest.fixture
def site(batchjob, tmp_path):
    """Writes the site's file, which the runs of the test then read."""

    def write_config(text: str):
        path = tmp_path / "run.yml"
        path.write_text(text)
        batchjob.environment["BATCHJOB_RUN_CONFIG"] = str(path)
        return batchjob

    return write_config


def states_by_name(batchjob) -> dict[str, str]:
    return {record["name"]: record["state"] for record in batchjob.records()}


def stop_runs(batchjob, *names: str) -> None:
    for name in names:
        batchjob("stop", "--grace", "0", name)


def test_cpu_list_binds_run(batchjob, cgroup_mode):
    cpu = str(max(os.sched_getaffinity(0)))
    tell = "import os; print(*os.sched_getaffinity(0))"
    argv = ("python3", "-c", tell)
    done = batchjob("run", "--cgroup", cgroup_mode, "--quiet", "--cpu-list", cpu, "--", *argv)
    assert (done.stdout, done.stderr, done.returncode) == (f"{cpu}\n", "", 0)
    record = batchjob.record()
    assert (record["cpu_list"], record["allocated_cpus"]) == (cpu, 1)
    assert f"bound to CPU {cpu}\n" in batchjob("job", record["jobid"]).stdout


@pytest.mark.parametrize("given", ["x", "3-1", "", "99999", "0-"])
def test_invalid_cpu_list(batchjob, given):
    done = batchjob("run", f"--cpu-list={given}", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(
        "expected CPUs such as 0-3,8|CPU 99999 is not usable; usable are ", done.stderr
    )
    assert not batchjob.data.exists()


def test_flags_override_site_defaults(site):
    batchjob = site("time-limit: 90s\nmax-time-limit: 1h\n")
    batchjob("run", "--name", "plain", "--", "true")
    batchjob("run", "--name", "own", "--time-limit", "30m", "--", "true")
    found = {each["name"]: each["time_limit_seconds"] for each in batchjob.records()}
    assert found == {"plain": 90, "own": 1800}


def test_limits_of_the_site_are_never_left_out(site):
    done = site("memory: 1G\n")("run", "--cgroup", "never", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "batchjob: --memory: limits need a cgroup\n"
    done = site("max-runs: 1\n")("run", "--data", "/proc/full", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert "max-runs: the runs cannot be counted: /proc/full: " in done.stderr


def test_max_time_limit(site):
    batchjob = site("max-time-limit: 300ms\n")
    refused = batchjob("run", "--time-limit", "2h", "--", "true")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--time-limit: the maximum is 0.3 s, got 7200 s" in refused.stderr
    assert batchjob("run", "--quiet", "--", "sleep", "600").returncode == 124
    assert batchjob.record()["state"] == "TIMEOUT"


@pytest.mark.parametrize(
    ("text", "message"),
    [("mist: 1\n", "unknown key mist"), ("cpus: -1\n", "expected a number above 0"),
     ("max-runs: many\n", "expected a whole number")],
)  # fmt: skip
def test_invalid_site_file_is_named_with_line(site, text, message):
    done = site(text)("run", "--", "true")
    assert done.returncode == 2
    assert re.search(rf"run\.yml:1: .*{message}", done.stderr)


def test_max_runs_queues_further_runs(site):
    batchjob = site("max-runs: 1\n")
    batchjob("run", "--detach", "--name", "first", "--", *SLEEP)
    for name in ("second", "third"):
        waits = batchjob("run", "--detach", "--name", name, "--", *SLEEP)
        assert waits.returncode == 0
        assert f"{name} is pending; at most 1 run at once; limits: none" in waits.stderr
    assert states_by_name(batchjob) == {"first": "RUNNING", "second": "PENDING", "third": "PENDING"}
    listed = batchjob("jobs", "--pending").stdout
    assert "(at most 1 run at once)" in listed
    assert "first" not in listed
    assert "at most 1 run at once" in batchjob("job", "second").stdout
    stop_runs(batchjob, "first")
    until(lambda: states_by_name(batchjob)["second"] == "RUNNING")
    assert states_by_name(batchjob)["third"] == "PENDING"  # they begin in their order
    assert batchjob("cancel", "third").returncode == 0
    stop_runs(batchjob, "second")
    ended = dict.fromkeys(("first", "second", "third"), "CANCELLED")
    until(lambda: states_by_name(batchjob) == ended)
    assert "at once" not in batchjob("job", "second").stdout


def test_killed_supervisor_frees_its_place(site):
    batchjob = site("max-runs: 1\n")
    batchjob("run", "--detach", "--name", "first", "--", *SLEEP)
    for name in ("second", "third"):
        batchjob("run", "--detach", "--name", name, "--", *SLEEP)
    pids = {each["name"]: each["supervisor"]["pid"] for each in batchjob.records()}
    os.kill(pids["second"], signal.SIGKILL)
    os.kill(pids["first"], signal.SIGKILL)
    until(lambda: states_by_name(batchjob)["third"] == "RUNNING")
    stop_runs(batchjob, "third")


def test_delayed_run_keeps_nobody_waiting(site):
    batchjob = site("max-runs: 1\n")
    batchjob("run", "--detach", "--at=+1h", "--name=later", "--", "true")
    assert batchjob("run", "--quiet", "--", "echo", "now").stdout == "now\n"
    batchjob("cancel", "later")


def test_maximum_that_is_lowered_ends_no_run(site):
    batchjob = site("max-runs: 3\n")
    for name in ("first", "second"):
        batchjob("run", "--detach", "--name", name, "--", *SLEEP)
    site("max-runs: 1\n")
    waits = batchjob("run", "--detach", "--name=third", "--", *SLEEP)
    assert "at most 1 run at once" in waits.stderr
    stop_runs(batchjob, "first")
    assert states_by_name(batchjob)["second"] == "RUNNING"
    assert states_by_name(batchjob)["third"] == "PENDING"
    stop_runs(batchjob, "second")
    until(lambda: states_by_name(batchjob)["third"] == "RUNNING", "the third")
    stop_runs(batchjob, "third")


@pytest.fixture
def remotely(site):
    """Starts a run in the background for a person, as `batchjob up` does."""

    def start(person: str, *arguments: str, role: str = "admin"):
        asked_by = (f"--requested-by={person}", f"--requested-role={role}")
        batchjob = start.batchjob = site(start.limits)
        return batchjob("run", "--detach", *asked_by, *arguments, "--", *SLEEP)

    yield start
    for record in start.batchjob.records():
        start.batchjob("stop", "--grace=0", record["jobid"])


def test_each_person_has_limits_of_their_own(remotely):
    remotely.limits = "remote:\n  max-runs: 1\n  max-waiting: 1\n  users: {bob: {max-runs: 2}}\n"
    assert "is running" in remotely("ada", "--name=a1").stderr
    assert "at most 1 run at once for ada" in remotely("ada", "--name=a2").stderr
    refused = remotely("ada", "--name=a3")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "batchjob: remote.max-waiting: ada may have 1 waiting run, and has as many\n"
    )
    assert "is running" in remotely("bob", "--name=b1").stderr
    assert "is running" in remotely("bob", "--name=b2").stderr
    assert "at most 2 runs at once for bob" in remotely("bob", "--name=b3").stderr
    stop_runs(remotely.batchjob, "a1")
    until(lambda: states_by_name(remotely.batchjob)["a2"] == "RUNNING", "ada's second run")
    assert states_by_name(remotely.batchjob)["b3"] == "PENDING"
    by_name = {each["name"]: each["requested_by"] for each in remotely.batchjob.records()}
    assert by_name == {"a1": "ada", "a2": "ada", "b1": "bob", "b2": "bob", "b3": "bob"}


def test_cpus_and_memory_are_those_of_all_runs_of_a_person(remotely):
    """On machines without cgroups, a whole number of CPUs is bound."""
    remotely.limits = "remote: {max-cpus: 1}\n"
    assert "is running" in remotely("ada", "--cpus=1", "--name=a1").stderr
    assert "at most 1 CPU at once for ada" in remotely("ada", "--cpus=1", "--name=a2").stderr
    assert "is running" in remotely("bob", "--cpus=1").stderr
    for arguments, message in (
        ((), "remote.max-cpus: expected --cpus; ada may have 1 CPU"),
        (("--cpus=2",), "remote.max-cpus: ada may have 1 CPU, got 2 CPUs"),
    ):
        refused = remotely("ada", *arguments)
        assert (refused.returncode, refused.stderr) == (2, f"batchjob: {message}\n")
    remotely.limits = "remote: {max-memory: 1G, max-time-limit: 1h}\n"
    refused = remotely("ada", "--memory=2G")
    assert refused.stderr == "batchjob: remote.max-memory: ada may have 1 GiB, got 2 GiB\n"
    refused = remotely("ada", "--memory=1G", "--time-limit=2h")
    message = "remote.max-time-limit: ada may have 3600 s, got 7200 s"
    assert refused.stderr == f"batchjob: {message}\n"
    remotely.limits = "remote: {max-time-limit: 1h}\n"
    remotely("ada", "--name=timed")
    timed = next(each for each in remotely.batchjob.records() if each.get("name") == "timed")
    assert timed["time_limit_seconds"] == 3600


def test_what_is_said_of_a_user_counts_more_than_of_a_role(remotely):
    remotely.limits = """remote:
  max-runs: 1
  roles: {admin: {max-runs: 2}}
  users: {ada: {max-runs: 0}}
"""
    for person, role, runs in (("ada", "admin", 3), ("bob", "admin", 2), ("eve", "viewer", 1)):
        for _ in range(runs):
            assert "is running" in remotely(person, role=role).stderr
    assert "at most 2 runs at once for bob" in remotely("bob").stderr
    assert "at most 1 run at once for eve" in remotely("eve", role="viewer").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("users: {ada: 3}", "remote.users: expected names, each with some of max-runs, max-waiting"),
     ("users: {ada: {max-run: 3}}", "remote.users: expected names, each with some of max-runs"),
     ("users: {ada: {max-runs: x}}", "remote.users: max-runs: expected a whole number"),
     ("users: [ada]", "remote.users: expected names, each with"),
     ("roles: {king: {max-runs: 1}}", "remote.roles: expected user, viewer, admin, got king")],
)  # fmt: skip
def test_invalid_limits_of_people_are_named(site, text, message):
    done = site(f"remote:\n  {text}\n")("run", "--", "true")
    assert done.returncode == 2
    assert re.search(rf"run\.yml:2: {re.escape(message)}", done.stderr), done.stderr
