"""`batchjob up` as somebody meets it: started, a job run, looked at, killed, started again."""

import contextlib
import gzip
import json
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.exporter import parse
from tests.e2e.processes import free_ports, until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
}  # fmt: skip


class Up(NamedTuple):
    """A running `batchjob up`."""

    process: subprocess.Popen[bytes]
    data: Path
    log: Path
    web: str
    exporter: str

    def token(self) -> str:
        return (self.data / "token").read_text().strip()

    def get(self, path: str, **headers: str) -> str:
        return self._get(f"http://{self.web}{path}", headers)

    def scrape(self, **headers: str) -> str:
        return self._get(f"http://{self.exporter}/metrics", headers)

    @staticmethod
    def _get(url: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def api(self, path: str) -> Any:
        return json.loads(self.get(f"/api/v1/{path}", Authorization=f"Bearer {self.token()}"))

    def answers(self) -> bool:
        try:
            self.get("/-/ready")
        except OSError:
            return False
        return True


@contextlib.contextmanager
def up(data: Path, log: Path, *flags: str) -> Iterator[Up]:
    web, exporter = (f"127.0.0.1:{port}" for port in free_ports(2))
    argv = [
        sys.executable, "-m", "batchjob_cli", "up", f"--data={data}", f"--listen-address={web}",
        f"--exporter-address={exporter}", *flags,
    ]  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=ENVIRONMENT, cwd="/")
    made = Up(process, data, log, web, exporter)
    try:
        until(lambda: process.poll() is not None or made.answers(), f"up: {log}", 60)
        assert process.poll() is None, log.read_text()
        yield made
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    assert "Traceback" not in log.read_text()


def run(data: Path, *command: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "batchjob_cli", "run", "--data", str(data), *command]
    return subprocess.run(
        argv, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    with up(folder / "data", folder / "log") as made:
        yield made


CPU_SECONDS = 5
BUSY = f"import time\nwhile time.process_time() < {CPU_SECONDS}: pass\ntime.sleep(6)"


def test_a_job_appears_everywhere_within_ten_seconds(machine: Up) -> None:
    begun = time.monotonic()
    done = run(machine.data, "--detach", "--name", "busy", "--", sys.executable, "-c", BUSY)
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
        assert "not served; --exporter-address=" in made.log.read_text()
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
    assert f"{machine.web}: Address already in use" in taken.stderr
    (port,) = free_ports(1)
    twice = subprocess.run(
        [*argv, f"--listen-address=127.0.0.1:{port}"], capture_output=True, text=True,
        env=ENVIRONMENT, timeout=60, check=False,
    )  # fmt: skip
    assert twice.returncode == 5
    first = (
        f"batchjob up serves it already, at http://{machine.web} (process {machine.process.pid})"
    )
    assert first in twice.stderr
    assert "Traceback" not in taken.stderr + twice.stderr


def test_the_demo_has_something_to_see(tmp_path: Path) -> None:
    with up(tmp_path / "data", tmp_path / "log", "--demo") as made:
        until(lambda: len(made.api("jobs?cluster=local")) >= 5, "five jobs", 60)
        until(
            lambda: "FAILED" in {job["state"] for job in made.api("jobs?cluster=local")},
            "one fails",
            60,
        )
        for job in made.api("jobs?cluster=local"):
            run_stop(made.data, job["jobid"])
    assert "a made-up cluster with" in (tmp_path / "log").read_text()
    with up(tmp_path / "data", tmp_path / "log") as again:
        assert {job["cluster"] for job in again.api("jobs")} == {"local"}


def run_stop(data: Path, jobid: str) -> None:
    argv = [sys.executable, "-m", "batchjob_cli", "stop", "--data", str(data), jobid]
    subprocess.run(argv, capture_output=True, env=ENVIRONMENT, timeout=60, check=False)


KINDS = {
    "COMPLETED": ("--", "true"),
    "FAILED": ("--", "sh", "-c", "exit 3"),
    "TIMEOUT": ("--time-limit", "300ms", "--", "sleep", "600"),
    "RUNNING": ("--", "sleep", "600"),
    "PENDING": ("--at", "+1h", "--", "true"),
}
"""Options and command of a run that comes to a state, or stays in it."""


def test_killed_at_any_instant_it_loses_no_run_doubles_none_and_ends_none(
    tmp_path: Path, long_form: bool
) -> None:
    chance = random.Random(3)
    data = tmp_path / "data"
    expected: dict[str, str] = {}
    for number in range(50 if long_form else 5):
        log = tmp_path / f"log{number}"
        with up(data, log, "--samples.interval=0.5s", "--interval=0.5s") as made:
            for state, command in chance.sample(sorted(KINDS.items()), 3):
                jobid = run(data, "--detach", "--quiet", *command).stdout.strip()
                expected[jobid] = state
            time.sleep(chance.uniform(0.1, 2))
            made.process.kill()
            made.process.wait()
    samples = [
        json.loads(line) for path in (data / "samples").rglob("*.jsonl.gz") for line in _lines(path)
    ]
    assert samples
    with up(data, tmp_path / "log", "--interval=0.5s") as made:
        until(lambda: states(made) == expected, "all runs are as they were", 60)
        for jobid, state in expected.items():
            if state in ("RUNNING", "PENDING"):
                run_stop(data, jobid)
                expected[jobid] = "CANCELLED"
        until(lambda: states(made) == expected, "all runs have ended", 60)
    with contextlib.closing(sqlite3.connect(data / "jobs.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def states(made: Up) -> dict[str, str]:
    """Each run's state; the list has none twice."""
    rows = made.api("jobs?limit=1000")
    found = {row["jobid"]: row["state"] for row in rows}
    assert len(found) == len(rows)
    return found
