"""Runs over the API of `batchjob up`: who may start, stop, delete and read them, by certificate
and by token, and the line of the audit log that each request writes.
"""

import json
import re
import time
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
import requests

from batchjob_cli.run import cgroup
from tests.helpers.processes import end, free_ports
from tests.helpers.waiting import scaled, until
from tests.security.remote_up import RemoteUp, remote_server, run_cli, start


def send_request(
    remote: RemoteUp, who: str, method: str, path: str, **options
) -> requests.Response:
    """Send a request as `who`: by certificate, with the token for "token", or as nobody for ""."""
    headers = {"Authorization": f"Bearer {remote.token}"} if who == "token" else {}
    cert = str(remote.folder / f"{who}.pem") if who not in ("", "token") else None
    return requests.request(
        method, urljoin(f"{remote.url}/api/v1/", path), headers=headers, cert=cert,
        timeout=scaled(60), verify=str(remote.folder / "ca.pem"), **options,
    )  # fmt: skip


def get_page(remote: RemoteUp, who: str, path: str) -> str:
    """Get an HTML page as `who`."""
    answer = send_request(remote, who, "GET", f"/{path}")
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def remote(tmp_path_factory) -> Iterator[RemoteUp]:
    (port,) = free_ports(1)
    with remote_server(tmp_path_factory.mktemp("remote"), "127.0.0.1", port) as server:
        until(lambda: is_ready(server), "answers", 60)
        yield server


def is_ready(remote: RemoteUp) -> bool:
    try:
        return send_request(remote, "token", "GET", "me").ok
    except requests.ConnectionError:
        return False


def wait_for_audit_line(remote: RemoteUp, who: str, what: str) -> None:
    until(lambda: re.search(rf"{who} \(\w+\) {what}", remote.log()), f"{who} {what}", 10)


@pytest.mark.parametrize("who", ["ada", "token"])
def test_run_lifecycle(remote, who):
    script = "echo one; echo $COLOR >&2; sleep 600"
    body = {"command": ["sh", "-c", script], "name": f"by-{who}", "environment": {"COLOR": "red"}}
    started = send_request(remote, who, "POST", "runs", json=body)
    assert started.status_code == 201, started.text
    run = started.json()
    assert (run["state"], run["name"], run["end_time"]) == ("RUNNING", f"by-{who}", None)
    user = who if who != "token" else ""
    wait_for_audit_line(remote, user, f"started run {run['id']}")
    logs = f"runs/{run['id'][:8]}/logs"  # a prefix of an id is accepted, as is a name
    until(lambda: "red" in send_request(remote, "vera", "GET", logs).text, "output", 10)
    assert send_request(remote, "vera", "GET", logs, params={"stream": "stdout"}).text == "one\n"
    assert send_request(remote, "vera", "GET", logs, params={"limit": 0}).text == ""
    wait_for_audit_line(remote, "vera", f"saw output of run {run['id']}")
    assert send_request(remote, who, "DELETE", f"runs/by-{who}").status_code == 409
    stopped = send_request(remote, who, "POST", f"runs/by-{who}/stop", json={"grace_seconds": 1})
    assert (stopped.status_code, stopped.json()["status"]) == (200, "stopped")
    wait_for_audit_line(remote, user, f"stopped run {run['id']}")
    assert send_request(remote, who, "POST", f"runs/{run['id']}/stop").status_code == 409
    assert send_request(remote, who, "DELETE", f"runs/{run['id']}").status_code == 204
    wait_for_audit_line(remote, user, f"deleted run {run['id']}")
    gone = send_request(remote, who, "GET", f"runs/{run['id']}")
    assert (gone.status_code, str(remote.folder) in gone.text) == (404, False)


def test_refused_call_is_a_line_of_the_audit_log(remote):
    refused = send_request(remote, "vera", "POST", "runs", json={"command": ["true"]})
    assert refused.status_code == 403
    wait_for_audit_line(remote, "vera", "was refused POST '/api/v1/runs': only an admin may start")


def test_pending_run_is_cancelled(remote):
    body = {"command": ["true"], "start_time": "2099-01-01T00:00:00Z"}
    run = send_request(remote, "ada", "POST", "runs", json=body).json()
    assert (run["state"], run["start_time"]) == ("PENDING", None)
    filters = {"cluster": "local", "state": "PENDING"}

    def is_listed() -> bool:
        rows = send_request(remote, "vera", "GET", "jobs", params=filters).json()
        return run["id"] in {row["jobid"] for row in rows}

    until(is_listed, "in the list", 30)
    for path in ("jobs", "jobs?state=PENDING"):
        assert run["id"][:8] in get_page(remote, "vera", path)
    assert run["id"][:8] in get_page(remote, "token", "")  # whose runs they are
    cancelled = send_request(remote, "ada", "POST", f"runs/{run['id']}/cancel").json()
    assert (cancelled["state"], cancelled["status"]) == ("CANCELLED", "cancelled")
    wait_for_audit_line(remote, "ada", f"cancelled run {run['id']}")
    until(lambda: not is_listed(), "out of the list", 30)
    assert send_request(remote, "ada", "POST", f"runs/{run['id']}/cancel").status_code == 409


def test_run_limits_are_in_every_answer(remote):
    body = {"command": ["sleep", "600"], "name": "limited", "time_limit_seconds": 90.5,
            "cpus": 0.5, "memory_bytes": 64 << 20}  # fmt: skip
    answer = send_request(remote, "ada", "POST", "runs", json=body)
    if cgroup.creation_error():  # nothing to hold it: whatever is asked for, it is refused
        assert "--cpus, --memory: cannot create a cgroup" in answer.text
        return
    started = answer.json()
    assert started["start_time"] >= started["submit_time"]
    assert started["time_limit_seconds"] == 90.5
    assert (started["cpus"], started["memory_bytes"]) == (0.5, 64 << 20)
    assert send_request(remote, "vera", "GET", "runs/limited").json() == started
    wait_for_audit_line(remote, "vera", f"saw run {started['id']}")
    assert send_request(remote, "ada", "POST", "runs/limited/stop", json={"grace_seconds": 0}).ok


def test_logs_by_time_and_number_of_lines(remote, tmp_path):
    script = "echo early; until [ -e go ]; do sleep 0.1; done; echo late; echo last"
    body = {"command": ["sh", "-c", script], "directory": str(tmp_path)}
    run = send_request(remote, "ada", "POST", "runs", json=body).json()

    def lines(**params) -> str:
        return send_request(remote, "vera", "GET", f"runs/{run['id']}/logs", params=params).text

    until(lambda: lines() == "early\n", "output", 30)
    between = int(time.time()) + 1
    until(lambda: time.time() > between, "the next second", 10)
    (tmp_path / "go").touch()
    until(lambda: lines().endswith("last\n"), "output", 30)
    assert lines(since=between) == "late\nlast\n"
    assert lines(until=between) == "early\n"
    assert lines(limit=1) == "last\n"


def test_ambiguous_name_lists_matching_runs(remote):
    body = {"command": ["true"], "name": "twin"}
    ids = {send_request(remote, "ada", "POST", "runs", json=body).json()["id"] for _ in range(2)}
    answer = send_request(remote, "vera", "GET", "runs/twin")
    assert answer.status_code == 300
    assert all(each in answer.json()["detail"] for each in ids)
    result = run_cli(remote, "job", "twin", who="vera")
    assert result.returncode == 3
    assert all(each in result.stderr for each in ids)


def test_logs_are_followed_until_run_ends(remote):
    script = "for n in 1 2 3; do echo $n; sleep 0.5; done"
    run = send_request(remote, "ada", "POST", "runs", json={"command": ["sh", "-c", script]}).json()
    followed = send_request(
        remote, "vera", "GET", f"runs/{run['id']}/logs", params={"follow": True}
    )
    assert followed.text == "1\n2\n3\n"


def test_samples_are_followed_before_the_first_exists(remote):
    run = send_request(remote, "ada", "POST", "runs", json={"command": ["sleep", "7"]}).json()
    params = {"follow": True, "type": "memory"}
    answer = send_request(remote, "vera", "GET", f"runs/{run['id']}/samples", params=params)
    if answer.text == "":
        pytest.skip("runs have no cgroup here")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["memory_peak_bytes"] > 0
    assert not any("cpu_user_seconds" in line for line in lines)
    path = f"runs/{run['id']}/samples"
    limited = send_request(remote, "vera", "GET", path, params={"limit": 1})
    (single_line,) = limited.text.splitlines()
    assert json.loads(single_line)["end_time_seconds"], (single_line, answer.text)
    wait_for_audit_line(remote, "vera", f"saw samples of run {run['id']}")


def test_metrics_command_waits_for_first_sample(remote):
    jobid = run_cli(remote, "run", "--detach", "--", "sleep", "7").stdout.strip()
    result = run_cli(remote, "metrics", "--follow", "--json", jobid)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["end_time_seconds"]


def test_all_ended_runs_are_deleted(remote):
    running = send_request(remote, "ada", "POST", "runs", json={"command": ["sleep", "600"]}).json()
    ended = send_request(remote, "ada", "POST", "runs", json={"command": ["true"]}).json()
    path = f"runs/{ended['id']}"
    until(lambda: send_request(remote, "ada", "GET", path).json()["end_time"], "end", 20)
    filters = {"cluster": "local", "state": "RUNNING"}

    def running_ids() -> set[str]:
        rows = send_request(remote, "ada", "GET", "jobs", params=filters).json()
        return {row["jobid"] for row in rows}

    until(lambda: running_ids() == {running["id"]}, "runs of other tests have ended", 30)
    answer = send_request(remote, "ada", "DELETE", "runs", params={"ended": True}).json()
    assert answer["deleted"] >= 1
    assert answer["skipped"] == 1
    wait_for_audit_line(remote, "ada", f"deleted {answer['deleted']} ended runs")
    assert send_request(remote, "ada", "DELETE", "runs").status_code == 422
    assert send_request(remote, "ada", "POST", f"runs/{running['id']}/stop").status_code == 200


def test_command_line_uses_remote_server(remote):
    foreground = run_cli(remote, "run", "--name=far", "--", "sh", "-c", "echo out; sleep 1; exit 3")
    assert (foreground.returncode, foreground.stdout) == (3, "out\n"), foreground.stderr
    assert re.search(r"^batchjob: far \S+ failed, exit status 3\n  wall time", foreground.stderr)
    assert "CPU time" in foreground.stderr
    assert run_cli(remote, "logs", "far", who="vera").stdout == "out\n"
    detached = run_cli(remote, "run", "--detach", "--name=longer", "--", "sleep", "600")
    long_run = detached.stdout.strip()
    listed = until(
        lambda: long_run in (output := run_cli(remote, "jobs").stdout) and output, "in the list", 30
    )
    assert "longer" in listed
    assert "sleep 600" in run_cli(remote, "job", long_run).stdout
    stopped = run_cli(remote, "stop", "--grace=1s", "longer")
    assert (stopped.returncode, "stopped" in stopped.stdout) == (0, True), stopped.stderr
    if (remote.folder / "data" / "samples" / long_run).is_dir():  # where it had a cgroup
        output = run_cli(remote, "metrics", "longer", "--type=memory")
        assert output.stdout.startswith("TIME"), output.stderr
        assert len(output.stdout.splitlines()) > 1
        assert '"memory_peak_bytes"' in run_cli(remote, "metrics", "--json", "longer").stdout
    scheduled = run_cli(remote, "run", "--at=+1h", "--", "true").stdout.strip()
    assert "cancelled" in run_cli(remote, "cancel", scheduled[:13]).stdout
    assert run_cli(remote, "delete", "longer").stdout == "batchjob: deleted 1 run\n"
    refused = run_cli(remote, "stop", "far", who="vera")
    assert (refused.returncode, "only an admin" in refused.stderr) == (4, True)
    token = run_cli(remote, "jobs", BATCHJOB_TOKEN=remote.token, BATCHJOB_CERT_FILE="")
    assert token.returncode == 0, token.stderr
    flags = [f"--server={remote.url}", f"--ca-file={remote.folder / 'ca.pem'}",
             f"--cert={remote.folder / 'vera.pem'}",
             f"--key={remote.folder / 'vera.pem'}"]  # fmt: skip
    unset = {"BATCHJOB_SERVER": "", "BATCHJOB_CA_FILE": "", "BATCHJOB_CERT_FILE": ""}
    assert "far" in run_cli(remote, "jobs", *flags, **unset).stdout
    wrong = run_cli(remote, "jobs", "--cert=/no/such.pem")
    assert (wrong.returncode, "--cert: /no/such.pem" in wrong.stderr) == (2, True)
    assert wrong.stderr.count("\n") == 1


def test_each_person_has_limits(remote):
    site = remote.folder / "run.yml"
    site.write_text(
        "remote: {max-runs: 1, max-waiting: 1, max-cpus: 2, users: {bob: {max-cpus: 0}}}"
    )

    def ask(who: str, **body) -> requests.Response:
        return send_request(remote, who, "POST", "runs", json={"command": ["sleep", "600"]} | body)

    evasion = {"environment": {"BATCHJOB_RUN_CONFIG": "/dev/null"}}
    refused = ask("ada", **evasion)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "remote.max-cpus: expected --cpus; ada may have 2 CPUs"
    first = ask("bob", name="first")
    assert (first.status_code, first.json()["state"]) == (201, "RUNNING"), first.text
    second = ask("bob", name="second", **evasion).json()
    assert (second["state"], second["requested_by"]) == ("PENDING", "bob")
    assert second["reason"] == "at most 1 run at once for bob"
    third = ask("bob")
    assert third.status_code == 422
    message = "remote.max-waiting: bob may have 1 waiting run, and has as many"
    assert third.json()["detail"] == message
    assert ask("vera").status_code == 403
    site.write_text("remote: {max-time-limit: 10}")  # which ends none of those that run
    assert ask("ada", time_limit_seconds=20).json()["detail"] == (
        "remote.max-time-limit: ada may have 10 s, got 20 s"
    )
    site.write_text("")
    assert send_request(remote, "vera", "GET", "runs/first").json()["state"] == "RUNNING"
    line = r"\(first\) started by \w+ for bob"
    until(lambda: re.search(line, remote.log()), "the line of its start", 20)
    for name in ("first", "second"):
        assert send_request(remote, "ada", "POST", f"runs/{name}/stop").status_code == 200


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
def test_viewer_may_only_read_and_others_are_rejected(remote, method, path, options):
    expected = 404 if method == "GET" else 403
    assert send_request(remote, "vera", method, path, **options).status_code == expected
    for who in ("", "nemo"):  # without a certificate, and with one that names no role
        assert send_request(remote, who, method, path, **options).status_code == 401


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"command": []}, "command"),
        ({"command": ["true\0"]}, "command"),
        ({"command": ["true"], "color": "red"}, "color"),
        ({"command": ["/no/such/program"]}, "no such file"),
        ({"command": ["true"], "directory": "/no/such/directory"}, "No such file"),
    ],
)
def test_invalid_run_is_rejected_with_reason(remote, body, message):
    refused = send_request(remote, "ada", "POST", "runs", json=body)
    assert (refused.status_code, message in refused.json()["detail"]) == (422, True), refused.text


def test_remote_runs_are_disabled_by_default(tmp_path):
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    process = start(tmp_path, address)
    try:
        token = (tmp_path / "data" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}

        def send_run():
            try:
                return requests.post(
                    f"http://{address}/api/v1/runs", json={"command": ["true"]}, headers=headers,
                    timeout=scaled(30),
                )  # fmt: skip
            except requests.ConnectionError:
                return None

        until(lambda: send_run() is not None, "answer", 60)
        answer = send_run()
        assert answer is not None
        assert (answer.status_code, "--runs.remote" in answer.json()["detail"]) == (404, True)
    finally:
        end(process)
