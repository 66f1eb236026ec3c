"""`batchjob run`: input, output, exit status, and the record of the run."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.batchjob_cli.run.conftest import PROGRAM, SLEEPER, own_cgroups
from tests.helpers.waiting import scaled, until

BURN = "import time\nwhile time.process_time() < {}: pass"


@pytest.mark.parametrize(
    ("script", "status", "state"),
    [
        ("exit 0", 0, "COMPLETED"),
        ("exit 3", 3, "FAILED"),
        ("kill -TERM $$", 128 + 15, "FAILED"),
        ("kill -SEGV $$", 128 + 11, "FAILED"),
    ],
)
def test_exit_status_is_passed_on(batchjob, cgroup_mode, script, status, state):
    done = batchjob("run", "--cgroup", cgroup_mode, "--", "sh", "-c", script)
    record = batchjob.record()
    assert done.returncode == status
    assert record["state"] == state
    assert record.get("exit_code", 128 + record.get("exit_signal", 0)) == status
    assert own_cgroups(record["jobid"]) == []


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("no-such-command", 127, "no-such-command: not found"),
        ("./no/such/file", 127, "no such file"),
        (os.devnull, 126, "Permission denied"),
        ("/", 126, "/: "),
    ],
)
def test_command_that_cannot_be_started(batchjob, cgroup_mode, command, status, message):
    done = batchjob("run", "--cgroup", cgroup_mode, "--", command)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    record = batchjob.record()
    assert (record["state"], record["exit_code"]) == ("FAILED", status)
    assert own_cgroups(record["jobid"]) == []


def test_streams_are_passed_on_and_recorded(batchjob, cgroup_mode):
    script = "cat; echo to-stderr >&2; printf 'no line feed'"
    done = batchjob("run", "--cgroup", cgroup_mode, "--quiet", "--", "sh", "-c", script,
                    stdin=None, input="line one\nline two\n")  # fmt: skip
    assert done.stdout == "line one\nline two\nno line feed"
    assert done.stderr == "to-stderr\n"
    assert batchjob.output("stdout") == b"line one\nline two\nno line feed"
    assert batchjob.output("stderr") == b"to-stderr\n"


def test_binary_output_is_unchanged(batchjob):
    data = bytes(range(256)) * 2000
    done = batchjob("run", "--quiet", "--", "cat", text=False, stdin=None, input=data)
    assert done.stdout == data
    assert batchjob.output() == data


def test_cpu_time_includes_all_descendants(batchjob, cgroup_mode):
    """A child and a grandchild that nobody waited for count as well."""
    burn = f"{sys.executable} -c '{BURN.format(0.3)}'"
    script = f"{burn}; (setsid {burn} & echo) & {burn}; sleep 1.5"
    done = batchjob("run", "--cgroup", cgroup_mode, "--name", "burner", "--", "bash", "-c", script)
    record = batchjob.record()
    cpu = record["user_cpu_seconds"] + record["system_cpu_seconds"]
    assert 0.85 <= cpu < 3.0
    assert f"burner {record['jobid']} completed" in done.stderr
    assert re.search(r"CPU time +[\d.]+ s \(user", done.stderr)


def test_peak_memory(batchjob, cgroup_mode):
    hold = "x = bytearray(200 << 20); import time; time.sleep(0.6)"
    batchjob("run", "--cgroup", cgroup_mode, "--", sys.executable, "-c", hold)
    assert 200 << 20 < batchjob.record()["peak_memory_bytes"] < 300 << 20


def test_peak_memory_excludes_supervisor(batchjob, cgroup_mode):
    batchjob("run", "--cgroup", cgroup_mode, "--", "true")
    assert batchjob.record().get("peak_memory_bytes", 0) < 8 << 20


def test_leftover_processes_are_ended(batchjob, cgroup_mode):
    script = "setsid sh -c 'trap \"\" TERM; sleep 600' & sleep 600 & sleep 0.2; exit 4"
    begun = time.monotonic()
    done = batchjob("run", "--cgroup", cgroup_mode, "--", "bash", "-c", script)
    assert done.returncode == 4
    assert "outlived the command" in done.stderr
    assert 2.0 < time.monotonic() - begun < scaled(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_forwarded(batchjob, cgroup_mode, number):
    script = f"trap 'echo got it; exit 5' {number.value}; echo ready; while :; do sleep 0.05; done"
    run = batchjob.start("run", "--cgroup", cgroup_mode, "--quiet", "--", "bash", "-c", script)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(number)
    assert run.communicate(timeout=scaled(30)) == ("got it\n", "")
    assert run.returncode == 5
    assert batchjob.record()["state"] == "FAILED"


def test_terminated_run_is_cancelled(batchjob, cgroup_mode):
    run = batchjob.start("run", "--cgroup", cgroup_mode, "--", *SLEEPER)
    assert run.stdout.readline() == "ready\n"
    run.terminate()
    _, output = run.communicate(timeout=scaled(30))
    assert run.returncode == 128 + 15
    assert "cancelled, signal 15" in output
    assert batchjob.record()["state"] == "CANCELLED"


def test_interrupted_run_ends_by_sigint(batchjob):
    run = batchjob.start("run", "--", *SLEEPER)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=scaled(30))
    assert run.returncode == -signal.SIGINT  # so that a shell's loop ends; $? is 130


def test_time_limit_kills_after_grace_time(batchjob, cgroup_mode):
    script = "trap '' TERM; echo begun; while :; do sleep 0.1; done"
    begun = time.monotonic()
    done = batchjob("run", "--cgroup", cgroup_mode, "--time-limit", "500ms", "--grace", "500ms",
                    "--", "bash", "-c", script)  # fmt: skip
    assert done.returncode == 124
    assert time.monotonic() - begun < scaled(20)
    record = batchjob.record()
    assert (record["state"], record["time_limit_seconds"]) == ("TIMEOUT", 0.5)
    assert "ended at its time limit" in done.stderr


def test_closed_pipe_ends_command_with_sigpipe(batchjob):
    shell = f"{PROGRAM[0]} -c '{PROGRAM[2]}' run --quiet -- yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell],
        env=batchjob.environment,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.stdout == "y\n141\n"
    assert batchjob.record()["exit_signal"] == signal.SIGPIPE


def test_nohup_is_inherited(batchjob):
    done = batchjob("run", "--quiet", "--", "sh", "-c", "kill -HUP $PPID; sleep 0.3; echo here",
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "here\n")


def test_killed_supervisor_takes_command_with_it(batchjob, cgroup_mode):
    run = batchjob.start(
        "run", "--cgroup", cgroup_mode, "--", "sh", "-c", "echo $$; exec sleep 600"
    )
    pid = int(run.stdout.readline())
    run.kill()
    run.communicate(timeout=scaled(30))
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert batchjob.record()["state"] == "RUNNING"  # whoever reads it sees that nobody watches
    batchjob("run", "--cgroup", cgroup_mode, "--quiet", "--", "true")
    until(lambda: all(own_cgroups(each["jobid"]) == [] for each in batchjob.records()))


def test_unusable_data_directory_does_not_keep_the_command_from_running(batchjob, tmp_path):
    (tmp_path / "file").write_text("")
    done = batchjob("run", "--data", str(tmp_path / "file"), "--", "sh", "-c", "echo ran; exit 3")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert f"the run is not recorded: {tmp_path}/file: " in done.stderr
    assert "exit status 3" in done.stderr


def test_full_file_system_does_not_keep_the_command_from_running(batchjob):
    """Even root can create nothing below /proc."""
    done = batchjob("run", "--quiet", "--no-logs", "--data", "/proc/full", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.count("\n") == 1
    assert "the run is not recorded: /proc/full: " in done.stderr


def test_missing_home_directory_does_not_keep_the_command_from_running(batchjob):
    data = "~nobody-of-this-name/data"
    done = batchjob("run", "--quiet", "--no-logs", "--data", data, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert f"the run is not recorded: {data}: no such home directory" in done.stderr


def test_limits_that_cannot_be_set_are_left_out_in_one_line(batchjob):
    limits = ("--cgroup", "never", "--quiet", "--memory", "1G", "--cpus", "1")
    tell = "import os; print(len(os.sched_getaffinity(0)))"
    for more in ((), ("--best-effort",)):
        done = batchjob("run", *limits, *more, "--", sys.executable, "-c", tell)
        assert (done.returncode, done.stdout) == (0, "1\n")
        line = r"batchjob: running without --cpus, --memory: limits need a cgroup(; bound to .*)?\n"
        assert re.fullmatch(line, done.stderr)


def test_run_that_is_refused_is_not_a_job(batchjob):
    limits = ("--cgroup", "never", "--memory", "1G", "--strict")
    done = batchjob("run", *limits, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "batchjob: --memory: limits need a cgroup\n"
    assert batchjob.records() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a command"),
        (("--cpus", "0", "true"), "expected a number above 0"),
        (("--memory", "lots", "true"), "expected a size"),
        (("--at", "tomorrow", "true"), "expected a time such as"),
        (("--at", "2020-01-01T00:00", "true"), "expected a time in the future"),
        (("--time-limit", "x", "true"), "expected a duration"),
    ],
)
def test_wrong_usage_is_one_line_error(batchjob, arguments, message):
    done = batchjob("run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_are_private(batchjob):
    batchjob("run", "--quiet", "--", "true")
    modes = {oct(path.stat().st_mode & 0o777) for path in batchjob.data.rglob("*")}
    assert modes == {"0o700", "0o600"}


def test_detach(batchjob, cgroup_mode):
    done = batchjob(
        "run", "--cgroup", cgroup_mode, "--detach", "--", "sh", "-c", "echo out; sleep 0.5"
    )
    assert re.fullmatch(r"[0-9a-f-]{36}\n", done.stdout)
    assert done.stdout.strip() == batchjob.record()["jobid"]
    until(lambda: batchjob.record()["state"] == "COMPLETED")
    assert batchjob.output() == b"out\n"


def test_detach_reports_command_that_cannot_start(batchjob):
    done = batchjob("run", "--detach", "--", "no-such-command")
    assert (done.returncode, done.stdout) == (127, "")
    assert "not found" in done.stderr


def test_run_at_later_time(batchjob):
    run = batchjob.start("run", "--at", "+2s", "--", "echo", "now")
    until(lambda: batchjob.data.exists() and batchjob.records())
    record = batchjob.record()
    assert record["state"] == "PENDING"
    assert "start_time" not in record
    output, _ = run.communicate(timeout=scaled(30))
    assert output == "now\n"
    record = batchjob.record()
    assert 1 <= record["start_time"] - record["submit_time"] <= 4


def test_interrupted_run_at_later_time(batchjob):
    run = batchjob.start("run", "--at", "+1h", "--", "echo", "now")
    until(lambda: batchjob.data.exists() and batchjob.records())
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=scaled(30))[0] == ""
    record = batchjob.record()
    assert record["state"] == "CANCELLED"
    assert "start_time" not in record
