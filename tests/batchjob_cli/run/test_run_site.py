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
    assert f"CPUs {cpu}" in batchjob("job", record["jobid"]).stdout


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


def test_site_log_of_runs(site, tmp_path):
    log = tmp_path / "runs.log"
    batchjob = site(f"max-runs: 1\nlog:\n  file: {log}\n")
    batchjob("run", "--detach", "--name", "slow", "--", *SLEEP)
    batchjob("run", "--detach", "--name", "waits", "--", "false")
    stop_runs(batchjob, "slow")
    until(lambda: states_by_name(batchjob)["waits"] == "FAILED")
    ids = {each["name"]: each["jobid"] for each in batchjob.records()}
    lines = [line.split("msg=", 1)[1].strip('"') for line in log.read_text().splitlines()]
    slow, waits = (f"run {ids[name]} ({name})" for name in ("slow", "waits"))
    assert lines[0].startswith(f"{slow} started by ")
    assert lines[1] == f"{waits} waits: at most 1 run at once"
    assert re.match(
        rf"{re.escape(slow)} ended: stopped, signal 15, .* s, CPU .* peak mem", lines[2]
    )
    assert lines[3].startswith(f"{waits} started by ")
    assert lines[4].startswith(f"{waits} ended: failed, exit status 1, ")
