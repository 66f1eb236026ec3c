"""`batchjob up` as somebody meets it: started, a job run, looked at, killed, started again."""

import contextlib
import gzip
import json
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.exporter import parse
from tests.e2e.processes import free_ports, until
from tests.e2e.up import ENVIRONMENT, Up, command, up

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    with up(folder / "data", folder / "log") as made:
        yield made


CPU_SECONDS = 5
BUSY = f"import time\nwhile time.process_time() < {CPU_SECONDS}: pass\ntime.sleep(6)"


def test_a_job_appears_everywhere_within_ten_seconds(machine: Up) -> None:
    begun = time.monotonic()
    done = command(
        machine.data, "run", "--detach", "--name", "busy", "--", sys.executable, "-c", BUSY
    )
    jobid = done.stdout.strip()
    assert len(jobid) == 36, done.stderr

    def seen() -> bool:
        scrape = parse(machine.scrape(Authorization=f"Bearer {machine.token()}"), 0)
        return bool(
            scrape.series("batchjob_job_cpu_seconds_total", jobid=jobid)
            and machine.api(f"jobs/{jobid}")
            and jobid[:8] in machine.get("/", Cookie=_cookie(machine))
        )

    def safely() -> bool:
        with contextlib.suppress(OSError):
            return seen()
        return False

    until(safely, "metrics, API and page", 10)
    assert time.monotonic() - begun < 20  # the start of Python included
    until(lambda: machine.api(f"jobs/{jobid}")[0]["end_time"] is not None, "ended", 90)
    (totals,) = machine.api(f"jobs/{jobid}")
    assert totals["state"] == "COMPLETED"
    cpu = totals["user_cpu_seconds"] + totals["system_cpu_seconds"]
    samples = [
        json.loads(line)
        for path in (machine.data / "samples" / jobid).glob("*.jsonl.gz")
        for line in _lines(path)
    ]
    assert len(samples) >= 2
    assert CPU_SECONDS <= cpu < CPU_SECONDS + 1.5  # the start of Python is work too


def _cookie(machine: Up) -> str:
    """What a browser gets for the address that was printed."""
    opener = urllib.request.build_opener(_NoRedirect)
    with pytest.raises(urllib.error.HTTPError) as answer:
        opener.open(
            urllib.request.Request(
                f"http://{machine.web}/?token={machine.token()}",
                headers={"Sec-Fetch-Site": "none"},
            ),
            timeout=10,
        )
    with contextlib.closing(answer.value) as redirect:
        assert redirect.code in (302, 303, 307)
        return str(redirect.headers["Set-Cookie"]).partition(";")[0]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _lines(path: Path) -> list[str]:
    data = b""
    with contextlib.suppress(EOFError), gzip.open(path) as file:
        while piece := file.read1(1 << 16):
            data += piece
    return data.decode().splitlines()


def test_the_token_is_its_owners_alone(machine: Up) -> None:
    assert stat.S_IMODE((machine.data / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.data.stat().st_mode) == 0o700
    for headers in ({}, {"Authorization": "Bearer bj_wrong"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            machine.get("/api/v1/jobs", **headers)
        assert refused.value.code == 401


@pytest.mark.parametrize("ask", [partial(Up.get, path="/metrics"), Up.scrape])
def test_metrics_need_the_token_and_an_own_name(machine: Up, ask: Callable[..., str]) -> None:
    borne = {"Authorization": f"Bearer {machine.token()}"}
    assert "batchjob_" in ask(machine, **borne)
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer bj_wrong"}, 401),
        ({"Authorization": f"Basic {machine.token()}"}, 401),
        ({**borne, "Host": "rebound.example"}, 421),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(machine, **headers)
        assert refused.value.code == status


def test_nobody_is_scraped_unless_asked_for(tmp_path: Path) -> None:
    with up(tmp_path / "data", tmp_path / "log", "--exporter-address=") as made:
        assert "not exposed; set --exporter-address=" in made.log.read_text()
        with pytest.raises(urllib.error.URLError, match="refused"):
            made.scrape()


def test_another_host_name_is_refused(machine: Up) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        machine.get("/", Host="rebound.example", Cookie=_cookie(machine))
    assert refused.value.code in (400, 403, 421)


def test_a_second_one_says_what_is_wrong(machine: Up, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "batchjob_cli", "up", "--data", str(machine.data)]
    taken = subprocess.run(
        [*argv[:-1], str(tmp_path), f"--listen-address={machine.web}"], capture_output=True,
        text=True, env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    assert taken.returncode == 2
    assert f"{machine.web}: Address already in use; use --listen-address" in taken.stderr
    (port,) = free_ports(1)
    scraped = subprocess.run(
        [*argv[:-1], str(tmp_path / "other"), f"--listen-address=127.0.0.1:{port}",
         f"--exporter-address={machine.exporter}"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    assert scraped.returncode == 2
    told = f"--exporter-address: cannot listen on {machine.exporter}: Address already in use\n"
    assert scraped.stderr == f"batchjob: {told}"
    (port,) = free_ports(1)
    twice = subprocess.run(
        [*argv, f"--listen-address=127.0.0.1:{port}"], capture_output=True, text=True,
        env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    assert twice.returncode == 5
    first = f"already served by batchjob up at http://{machine.web} (process {machine.process.pid})"
    assert first in twice.stderr
    assert "Traceback" not in taken.stderr + twice.stderr


def test_who_listens_on_every_address_is_told_what_that_means(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, tmp_path / "log", host="0.0.0.0") as made:
        told = (tmp_path / "log").read_text()
        jobs = command(data, "jobs")
    port = made.web.rpartition(":")[2]
    assert f"pages     http://{socket.gethostname()}:{port}/?token=" in told
    assert "warning   token and pages are sent unencrypted; set --web.tls" in told
    assert (jobs.returncode, jobs.stdout) == (0, "no job\n"), jobs.stderr


def test_the_demo_has_something_to_see(tmp_path: Path) -> None:
    with up(tmp_path / "data", tmp_path / "log", "--demo") as made:
        until(lambda: len(made.api("jobs?cluster=local")) >= 5, "five jobs", 60)
        until(
            lambda: "FAILED" in {job["state"] for job in made.api("jobs?cluster=local")},
            "one fails",
            60,
        )
        for job in made.api("jobs?cluster=local"):
            command(made.data, "stop", job["jobid"])
    assert "a generated cluster with" in (tmp_path / "log").read_text()
    with up(tmp_path / "data", tmp_path / "log") as again:
        assert {job["cluster"] for job in again.api("jobs")} == {"local"}
