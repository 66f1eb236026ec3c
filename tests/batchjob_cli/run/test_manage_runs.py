"""`batchjob logs`, `stop`, `cancel` and `delete`."""

import os
import pty
import signal
import subprocess
import time

import pytest

from batchjob.local_runs.record import TOMBSTONE
from batchjob_cli.client.running_up import announce, find_running_up
from batchjob_cli.run import stop_request
from tests.batchjob_cli.run.conftest import SLEEPER, own_cgroups
from tests.helpers.waiting import scaled, until


def wait_for_records(batchjob):
    return until(lambda: batchjob.data.exists() and batchjob.records())


def test_logs(batchjob):
    talk = "echo one; sleep 0.1; echo two >&2; sleep 0.1; echo three"
    batchjob("run", "--name", "talk", "--", "sh", "-c", talk)
    jobid = batchjob.record()["jobid"]
    assert batchjob("logs", jobid[:6]).stdout == "one\ntwo\nthree\n"
    assert batchjob("logs", "talk", "--stream", "stderr").stdout == "two\n"
    assert batchjob("logs", "talk", "--limit", "2").stdout == "two\nthree\n"
    assert batchjob("logs", "talk", "--since", "1h", "--limit", "0").stdout == ""
    assert batchjob("logs", "talk", "--until", "1h").stdout == ""
    assert batchjob("logs", "talk", "--until", "0s").stdout == batchjob("logs", "talk").stdout
    stamped = batchjob("logs", "talk", "--timestamps", "--stream", "stderr").stdout
    assert time.strftime("%Y-%m-%d ") in stamped
    assert stamped.endswith(" stderr two\n")


def test_logs_say_that_standard_output_is_full(batchjob):
    batchjob("run", "--", "echo", "kept")
    with open("/dev/full", "wb") as full:
        told = batchjob(
            "logs", batchjob.record()["jobid"],
            capture_output=False, stdout=full, stderr=subprocess.PIPE,
        )  # fmt: skip
    expected = "batchjob: standard output: No space left on device\n"
    assert (told.returncode, told.stderr) == (1, expected)


def test_logs_follow_until_end(batchjob):
    batchjob("run", "--detach", "--", "sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.5; done")
    followed = batchjob("logs", "--follow", batchjob.record()["jobid"])
    assert followed.stdout == "1\n2\n3\n"


def test_logs_after_supervisor_is_killed(batchjob):
    run = batchjob.start("run", "--", "sh", "-c", "echo kept; printf part; sleep 600")
    assert run.stdout.readline() == "kept\n"
    until(lambda: b"part" in batchjob.output())
    run.kill()
    run.communicate()
    assert batchjob("logs", batchjob.record()["jobid"]).stdout == "kept\npart"
    batchjob("run", "--quiet", "--", "true")  # which takes away what is left


def test_stop(batchjob, cgroup_mode):
    script = "trap 'echo ending; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    run = batchjob.start("run", "--cgroup", cgroup_mode, "--", "bash", "-c", script)
    assert run.stdout.readline() == "ready\n"
    stopped = batchjob("stop", batchjob.record()["jobid"])
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert "stopped" in stopped.stdout
    assert run.communicate(timeout=scaled(30))[0] == "ending\n"
    record = batchjob.record()
    assert (record["state"], record["cancelled_by"]) == ("CANCELLED", record["user"])
    again = batchjob("stop", record["jobid"])
    assert (again.returncode, again.stdout) == (4, "")
    assert "has already ended: stopped" in again.stderr


def test_stop_kills_after_grace_time(batchjob, cgroup_mode):
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    run = batchjob.start("run", "--cgroup", cgroup_mode, "--", "bash", "-c", script)
    assert run.stdout.readline() == "ready\n"
    assert batchjob("stop", "--grace", "300ms", batchjob.record()["jobid"]).returncode == 0
    run.communicate(timeout=scaled(30))
    assert run.returncode == 128 + 9
    assert own_cgroups(batchjob.record()["jobid"]) == []


def test_stop_suspended_run(batchjob):
    run = batchjob.start("run", "--", "sh", "-c", "echo ready; kill -STOP $$; sleep 600")
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.2)
    assert batchjob("stop", batchjob.record()["jobid"]).returncode == 0
    run.communicate(timeout=scaled(30))
    assert run.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "text",
    ['{"grace": 1' + "0" * 400 + "}", '{"grace": 1e999}', '{"grace": [1]}', "[1]", "[" * 900, ""],
)
def test_damaged_request_to_stop_is_none(tmp_path, text):
    (tmp_path / "x.stop").write_text(text)
    assert stop_request.read(tmp_path, "x") is None


def test_end_is_recorded_beside_a_damaged_request_to_stop(batchjob):
    request = '{"grace": 1' + "0" * 400 + "}"
    each = f"echo '{request}' > ${{each%.json}}.stop"
    script = f"for each in $0/runs/*.json; do {each}; done; exit 3"
    assert batchjob("run", "--", "sh", "-c", script, batchjob.data).returncode == 3
    assert not list((batchjob.data / "runs").glob("*.stop"))  # it has been looked at
    assert batchjob.record()["state"] == "FAILED"


def test_stop_run_without_supervisor(batchjob):
    run = batchjob.start("run", "--", *SLEEPER)
    assert run.stdout.readline() == "ready\n"
    (record,) = wait_for_records(batchjob)
    run.kill()
    run.communicate()
    result = batchjob("stop", record["jobid"])
    assert "its `batchjob run` was gone, and no process is left" in result.stdout
    assert own_cgroups(record["jobid"]) == []


def test_stop_names_processes_that_a_run_without_cgroup_left_behind(batchjob):
    script = "sleep 600 & echo $!; wait"
    batchjob("run", "--cgroup=never", "--detach", "--", "sh", "-c", script)
    grandchild = int(until(batchjob.output))
    os.kill(batchjob.record()["supervisor"]["pid"], signal.SIGKILL)
    stop = ("stop", batchjob.record()["jobid"])
    try:
        refused = until(lambda: (done := batchjob(*stop)).returncode == 4 and done)
        assert f"left these processes behind: {grandchild};" in refused.stderr
    finally:
        os.kill(grandchild, signal.SIGKILL)
    ended = until(lambda: (done := batchjob(*stop)).returncode == 0 and done)
    assert "and no process is left" in ended.stdout


def test_cancel_pending_run(batchjob):
    run = batchjob.start("run", "--at", "+1h", "--", "echo", "never")
    (record,) = wait_for_records(batchjob)
    result = batchjob("cancel", record["jobid"][:8])
    assert (result.returncode, result.stderr) == (0, "")
    assert run.communicate(timeout=scaled(30))[0] == ""
    assert batchjob.record()["state"] == "CANCELLED"


def test_cancel_refuses_started_run(batchjob):
    run = batchjob.start("run", "--", "sleep", "600")
    (record,) = wait_for_records(batchjob)
    result = batchjob("cancel", record["jobid"])
    assert (result.returncode, "end it with batchjob stop" in result.stderr) == (4, True)
    run.terminate()
    run.communicate(timeout=scaled(30))


def test_delete(batchjob):
    for name in ("one", "two", "three"):
        batchjob("run", "--name", name, "--", "echo", name)
    jobid = next(each["jobid"] for each in batchjob.records() if each["name"] == "one")
    samples = batchjob.data / "samples" / jobid
    samples.mkdir(parents=True)
    (samples / "20260404-000000.jsonl.gz").write_bytes(b"")
    assert batchjob("delete", "one").stdout == "batchjob: deleted 1 run\n"
    left = {path.name for path in batchjob.data.rglob(f"{jobid}*")}
    assert left == {f"{jobid}{TOMBSTONE}"}  # for the database
    assert (
        batchjob("delete", "--all-ended", "--yes").stdout
        == "batchjob: deleted 2 runs; 0 not ended\n"
    )
    assert batchjob.records() == []


def test_delete_all_asks_for_confirmation(batchjob):
    batchjob("run", "--", "true")
    refused = batchjob("delete", "--all-ended")
    assert (refused.returncode, "use --yes" in refused.stderr) == (2, True)
    for answer, status, left in (("n\n", 4, 1), ("y\n", 0, 0)):
        master, slave = pty.openpty()
        os.write(master, answer.encode())
        result = batchjob("delete", "--all-ended", stdin=slave)
        os.close(master)
        os.close(slave)
        assert "Delete 1 run that has ended, with samples and output? [y/N]" in result.stderr
        assert (result.returncode, len(batchjob.records())) == (status, left)


@pytest.mark.parametrize("text", ["[1]", '{"url": "x", "supervisor": {"pid": 1e999}}'])
def test_damaged_announcement_is_none(tmp_path, text):
    (tmp_path / "up.json").write_text(text)
    assert find_running_up(tmp_path) is None


def test_address_of_live_page_is_printed(batchjob):
    batchjob.data.mkdir(exist_ok=True)
    with announce(batchjob.data, "http://127.0.0.1:10912"):
        output = batchjob("run", "--", "true").stderr
        detached = batchjob("run", "--detach", "--", "true")
    ids = {each["jobid"] for each in batchjob.records()}
    first = next(each for each in ids if each in output)
    assert f"watch it: http://127.0.0.1:10912/jobs/{first}\n" in output
    assert f"live at http://127.0.0.1:10912/jobs/{detached.stdout.strip()}" in detached.stderr
    assert "live at" not in batchjob("run", "--", "true").stderr


def test_running_run_is_not_deleted(batchjob):
    run = batchjob.start("run", "--name", "busy", "--", "sleep", "600")
    wait_for_records(batchjob)
    result = batchjob("delete", "busy")
    assert (result.returncode, "has not ended" in result.stderr) == (4, True)
    assert (
        batchjob("delete", "--all-ended", "--yes").stdout
        == "batchjob: deleted 0 runs; 1 not ended\n"
    )
    run.terminate()
    run.communicate(timeout=scaled(30))


@pytest.mark.parametrize("command", ["logs", "stop", "cancel", "delete"])
def test_ambiguous_name_exits_with_3(batchjob, command):
    for _ in range(2):
        batchjob("run", "--name", "twin", "--", "true")
    result = batchjob(command, "twin")
    assert (result.returncode, result.stdout) == (3, "")
    assert "'twin' matches 2 runs" in result.stderr
    assert all(each["jobid"] in result.stderr for each in batchjob.records())
    result = batchjob(command, "nobody")
    assert "no run has the id or name 'nobody'" in result.stderr
    assert result.stderr.count("\n") == 1
