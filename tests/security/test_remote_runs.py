"""Runs over the API of `batchjob up`: who may start, end, delete and read them, by certificate
and by token, and the line of the audit log that each call leaves.
"""

import json
import re
import signal
import time
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
import requests

from tests.e2e.processes import free_ports, until
from tests.security.remote_up import RemoteUp, cli, serving, start


def call(remote: RemoteUp, who: str, method: str, path: str, **options) -> requests.Response:
    """A request of somebody by certificate; of `token` with the token; of "" as nobody."""
    headers = {"Authorization": f"Bearer {remote.token}"} if who == "token" else {}
    cert = str(remote.folder / f"{who}.pem") if who not in ("", "token") else None
    return requests.request(
        method, urljoin(f"{remote.url}/api/v1/", path), headers=headers, cert=cert, timeout=60,
        verify=str(remote.folder / "ca.pem"), **options,
    )  # fmt: skip


def page(remote: RemoteUp, who: str, path: str) -> str:
    """A page, as somebody gets it."""
    answer = call(remote, who, "GET", f"/{path}")
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def remote(tmp_path_factory) -> Iterator[RemoteUp]:
    (port,) = free_ports(1)
    with serving(tmp_path_factory.mktemp("remote"), "127.0.0.1", port) as made:
        until(lambda: answers(made), "answers", 60)
        yield made


def answers(remote: RemoteUp) -> bool:
    try:
        return call(remote, "token", "GET", "me").ok
    except requests.ConnectionError:
        return False


def audited(remote: RemoteUp, who: str, what: str) -> None:
    until(lambda: re.search(rf"{who} \(\w+\) {what}", remote.log()), f"{who} {what}", 10)


@pytest.mark.parametrize("who", ["ada", "token"])
def test_a_run_from_its_start_to_its_deletion(remote, who):
    script = "echo one; echo $COLOR >&2; sleep 600"
    body = {"command": ["sh", "-c", script], "name": f"by-{who}", "environment": {"COLOR": "red"}}
    begun = call(remote, who, "POST", "runs", json=body)
    assert begun.status_code == 201, begun.text
    run = begun.json()
    assert (run["state"], run["name"], run["end_time"]) == ("RUNNING", f"by-{who}", None)
    name = who if who != "token" else ""
    audited(remote, name, f"started run {run['id']}")
    logs = f"runs/{run['id'][:8]}/logs"  # the beginning of an id will do, as will the name
    until(lambda: "red" in call(remote, "vera", "GET", logs).text, "output", 10)
    assert call(remote, "vera", "GET", logs, params={"stream": "stdout"}).text == "one\n"
    assert call(remote, "vera", "GET", logs, params={"limit": 0}).text == ""
    audited(remote, "vera", f"saw output of run {run['id']}")
    assert call(remote, who, "DELETE", f"runs/by-{who}").status_code == 409
    stopped = call(remote, who, "POST", f"runs/by-{who}/stop", json={"grace_seconds": 1})
    assert (stopped.status_code, stopped.json()["status"]) == (200, "stopped")
    audited(remote, name, f"stopped run {run['id']}")
    assert call(remote, who, "POST", f"runs/{run['id']}/stop").status_code == 409
    assert call(remote, who, "DELETE", f"runs/{run['id']}").status_code == 204
    audited(remote, name, f"deleted run {run['id']}")
    assert call(remote, who, "GET", f"runs/{run['id']}").status_code == 404


def test_a_run_that_waits_is_cancelled(remote):
    body = {"command": ["true"], "start_time": "2099-01-01T00:00:00Z"}
    run = call(remote, "ada", "POST", "runs", json=body).json()
    assert (run["state"], run["start_time"]) == ("PENDING", None)
    listed = {"cluster": "local", "state": "PENDING"}

    def shown() -> bool:
        rows = call(remote, "vera", "GET", "jobs", params=listed).json()
        return run["id"] in {row["jobid"] for row in rows}

    until(shown, "in the list", 30)
    for path in ("jobs", "jobs?state=PENDING"):
        assert run["id"][:8] in page(remote, "vera", path)
    assert run["id"][:8] in page(remote, "token", "")  # whose runs they are
    cancelled = call(remote, "ada", "POST", f"runs/{run['id']}/cancel").json()
    assert (cancelled["state"], cancelled["status"]) == ("CANCELLED", "cancelled")
    audited(remote, "ada", f"cancelled run {run['id']}")
    until(lambda: not shown(), "out of the list", 30)
    assert call(remote, "ada", "POST", f"runs/{run['id']}/cancel").status_code == 409


def test_limits_are_told_by_every_answer(remote):
    body = {"command": ["sleep", "600"], "name": "limited", "time_limit_seconds": 90.5,
            "cpus": 0.5, "memory_bytes": 64 << 20, "best_effort": True}  # fmt: skip
    begun = call(remote, "ada", "POST", "runs", json=body).json()
    assert begun["start_time"] >= begun["submit_time"]
    assert begun["time_limit_seconds"] == 90.5
    assert begun["cpus"] in (0.5, None)  # None where there is no cgroup to hold it
    assert begun["memory_bytes"] in (64 << 20, None)
    assert call(remote, "vera", "GET", "runs/limited").json() == begun
    audited(remote, "vera", f"saw run {begun['id']}")
    assert call(remote, "ada", "POST", "runs/limited/stop", json={"grace_seconds": 0}).ok


def test_a_part_of_the_output(remote, tmp_path):
    script = "echo early; until [ -e go ]; do sleep 0.1; done; echo late; echo last"
    body = {"command": ["sh", "-c", script], "directory": str(tmp_path)}
    run = call(remote, "ada", "POST", "runs", json=body).json()

    def lines(**asked) -> str:
        return call(remote, "vera", "GET", f"runs/{run['id']}/logs", params=asked).text

    until(lambda: lines() == "early\n", "output", 30)
    between = int(time.time()) + 1
    until(lambda: time.time() > between, "the next second", 10)
    (tmp_path / "go").touch()
    until(lambda: lines().endswith("last\n"), "output", 30)
    assert lines(since=between) == "late\nlast\n"
    assert lines(until=between) == "early\n"
    assert lines(limit=1) == "last\n"


def test_several_runs_of_a_name_are_named(remote):
    body = {"command": ["true"], "name": "twin"}
    ids = {call(remote, "ada", "POST", "runs", json=body).json()["id"] for _ in range(2)}
    answer = call(remote, "vera", "GET", "runs/twin")
    assert answer.status_code == 300
    assert all(each in answer.json()["detail"] for each in ids)
    told = cli(remote, "job", "twin", who="vera")
    assert told.returncode == 3
    assert all(each in told.stderr for each in ids)


def test_logs_are_followed_to_the_end(remote):
    script = "for n in 1 2 3; do echo $n; sleep 0.5; done"
    run = call(remote, "ada", "POST", "runs", json={"command": ["sh", "-c", script]}).json()
    followed = call(remote, "vera", "GET", f"runs/{run['id']}/logs", params={"follow": True})
    assert followed.text == "1\n2\n3\n"


def test_samples_are_followed_from_before_the_first_one(remote):
    run = call(remote, "ada", "POST", "runs", json={"command": ["sleep", "7"]}).json()
    asked = {"follow": True, "type": "memory"}
    told = call(remote, "vera", "GET", f"runs/{run['id']}/samples", params=asked)
    if told.text == "":
        pytest.skip("runs have no cgroup here")
    lines = [json.loads(line) for line in told.text.splitlines()]
    assert lines[-1]["memory_peak_bytes"] > 0
    assert not any("cpu_user_seconds" in line for line in lines)
    path = f"runs/{run['id']}/samples"
    (only,) = call(remote, "vera", "GET", path, params={"limit": 1}).text.splitlines()
    assert json.loads(only)["end_time_seconds"], (only, told.text)
    audited(remote, "vera", f"saw samples of run {run['id']}")


def test_metrics_of_a_run_that_has_only_begun_are_waited_for(remote):
    jobid = cli(remote, "run", "--detach", "--", "sleep", "7").stdout.strip()
    told = cli(remote, "metrics", "--json", jobid)
    assert told.returncode == 0, told.stderr
    if (remote.folder / "data" / "samples" / jobid).is_dir():  # where it had a cgroup
        assert json.loads(told.stdout.splitlines()[-1])["end_time_seconds"]


def test_ended_ones_are_deleted_together(remote):
    long = call(remote, "ada", "POST", "runs", json={"command": ["sleep", "600"]}).json()
    short = call(remote, "ada", "POST", "runs", json={"command": ["true"]}).json()
    until(lambda: call(remote, "ada", "GET", f"runs/{short['id']}").json()["end_time"], "end", 20)
    told = call(remote, "ada", "DELETE", "runs", params={"ended": True}).json()
    assert told["deleted"] >= 1
    assert told["skipped"] == 1
    audited(remote, "ada", f"deleted {told['deleted']} ended runs")
    assert call(remote, "ada", "DELETE", "runs").status_code == 422
    assert call(remote, "ada", "POST", f"runs/{long['id']}/stop").status_code == 200


def test_commands_of_another_machine(remote):
    done = cli(remote, "run", "--name=far", "--", "sh", "-c", "echo out; sleep 1; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n"), done.stderr
    assert "failed" in done.stderr
    assert cli(remote, "logs", "far", who="vera").stdout == "out\n"
    long = cli(remote, "run", "--detach", "--name=longer", "--", "sleep", "600").stdout.strip()
    listed = until(lambda: long in (told := cli(remote, "jobs").stdout) and told, "in the list", 30)
    assert "longer" in listed
    assert "sleep 600" in cli(remote, "job", long).stdout
    stopped = cli(remote, "stop", "--grace=1s", "longer")
    assert (stopped.returncode, "stopped" in stopped.stdout) == (0, True), stopped.stderr
    if (remote.folder / "data" / "samples" / long).is_dir():  # where it had a cgroup
        told = cli(remote, "metrics", "longer", "--type=memory")
        assert told.stdout.startswith("TIME"), told.stderr
        assert len(told.stdout.splitlines()) > 1
        assert '"memory_peak_bytes"' in cli(remote, "metrics", "--json", "longer").stdout
    later = cli(remote, "run", "--at=+1h", "--", "true").stdout.strip()
    assert "cancelled" in cli(remote, "cancel", later[:13]).stdout
    assert cli(remote, "delete", "longer").stdout == "batchjob: 1 deleted\n"
    refused = cli(remote, "stop", "far", who="vera")
    assert (refused.returncode, "only an admin" in refused.stderr) == (4, True)
    token = cli(remote, "jobs", BATCHJOB_TOKEN=remote.token, BATCHJOB_CERT_FILE="")
    assert token.returncode == 0, token.stderr
    flags = [f"--server={remote.url}", f"--ca-file={remote.folder / 'ca.pem'}",
             f"--cert={remote.folder / 'vera.pem'}",
             f"--key={remote.folder / 'vera.pem'}"]  # fmt: skip
    unset = {"BATCHJOB_SERVER": "", "BATCHJOB_CA_FILE": "", "BATCHJOB_CERT_FILE": ""}
    assert "far" in cli(remote, "jobs", *flags, **unset).stdout
    wrong = cli(remote, "jobs", "--cert=/no/such.pem")
    assert (wrong.returncode, "--cert: /no/such.pem" in wrong.stderr) == (2, True)
    assert wrong.stderr.count("\n") == 1


CALLS = [
    ("POST", "runs", {"json": {"command": ["true"]}}),
    ("POST", "runs/x/stop", {}),
    ("POST", "runs/x/cancel", {}),
    ("DELETE", "runs/x", {}),
    ("DELETE", "runs?ended=true", {}),
    ("GET", "runs/x", {}),
    ("GET", "runs/x/logs", {}),
]


@pytest.mark.parametrize(("method", "path", "options"), CALLS)
def test_viewers_read_and_nobody_else_does_anything(remote, method, path, options):
    expected = 404 if method == "GET" else 403
    assert call(remote, "vera", method, path, **options).status_code == expected
    for who in ("", "nemo"):  # without a certificate, and with one that names no role
        assert call(remote, who, method, path, **options).status_code == 401


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"command": []}, "command"),
        ({"command": ["true\0"]}, "command"),
        ({"command": ["true"], "color": "red"}, "color"),
        ({"command": ["/no/such/program"]}, "no such file"),
        ({"command": ["true"], "directory": "/no/such/directory"}, "No such file"),
    ],
)
def test_what_cannot_be_started_is_said(remote, body, told):
    refused = call(remote, "ada", "POST", "runs", json=body)
    assert (refused.status_code, told in refused.json()["detail"]) == (422, True), refused.text


def test_off_unless_asked_for(tmp_path):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    process = start(tmp_path, address)
    try:
        token = (tmp_path / "data" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}

        def ask():
            try:
                return requests.post(
                    f"http://{address}/api/v1/runs", json={"command": ["true"]}, headers=headers,
                    timeout=30,
                )  # fmt: skip
            except requests.ConnectionError:
                return None

        until(lambda: ask() is not None, "answer", 60)
        answer = ask()
        assert answer is not None
        assert (answer.status_code, "--runs.remote" in answer.json()["detail"]) == (404, True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
