"""`batchjob up` from the outside: a job, the token, host names, conflicts and the demo."""

import contextlib
import gzip
import json
import re
import socket
import stat
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batchjob_cli.run.cgroup import creation_error
from tests.e2e.exporter import parse
from tests.e2e.up import ENVIRONMENT, BatchjobUp, run_command, running_batchjob_up
from tests.fake_nvml.library import FakeNvml, compile_into, programs_environment
from tests.helpers.processes import daemon, free_ports, run
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchjobUp]:
    folder = tmp_path_factory.mktemp("up")
    with running_batchjob_up(folder / "data", folder / "log") as instance:
        yield instance


CPU_SECONDS = 5
BUSY_PROGRAM = f"import time\nwhile time.process_time() < {CPU_SECONDS}: pass\ntime.sleep(6)"


def test_job_appears_in_metrics_api_and_page_within_ten_seconds(instance: BatchjobUp) -> None:
    started = time.monotonic()
    process = run_command(
        instance.data_directory,
        "run",
        "--detach",
        "--name",
        "busy",
        "--",
        sys.executable,
        "-c",
        BUSY_PROGRAM,
    )
    jobid = process.stdout.strip()
    assert len(jobid) == 36, process.stderr

    def is_visible() -> bool:
        scrape = parse(instance.scrape(Authorization=f"Bearer {instance.token()}"), 0)
        return bool(
            scrape.series("batchjob_job_cpu_seconds_total", jobid=jobid)
            and instance.get_api(f"jobs/{jobid}")
            and jobid[:8] in instance.get("/", Cookie=_login_cookie(instance))
        )

    def is_visible_without_errors() -> bool:
        with contextlib.suppress(OSError):
            return is_visible()
        return False

    until(is_visible_without_errors, "metrics, API and page", 10)
    assert time.monotonic() - started < scaled(20)  # including the start of Python
    until(lambda: instance.get_api(f"jobs/{jobid}")[0]["end_time"] is not None, "ended", 90)
    (job,) = instance.get_api(f"jobs/{jobid}")
    assert job["state"] == "COMPLETED"
    cpu = job["user_cpu_seconds"] + job["system_cpu_seconds"]
    samples = [
        json.loads(line)
        for path in (instance.data_directory / "samples" / jobid).glob("*.jsonl.gz")
        for line in _sample_lines(path)
    ]
    assert len(samples) >= 2
    assert CPU_SECONDS <= cpu < CPU_SECONDS + 1.5  # including the start of Python


def _login_cookie(instance: BatchjobUp) -> str:
    """The session cookie that the printed address gives to a browser."""
    opener = urllib.request.build_opener(_NoRedirect)
    with pytest.raises(urllib.error.HTTPError) as raised:
        opener.open(
            urllib.request.Request(
                f"http://{instance.web_address}/?token={instance.token()}",
                headers={"Sec-Fetch-Site": "none"},
            ),
            timeout=scaled(10),
        )
    with contextlib.closing(raised.value) as redirect:
        assert redirect.code in (302, 303, 307)
        return str(redirect.headers["Set-Cookie"]).partition(";")[0]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _sample_lines(path: Path) -> list[str]:
    text = b""
    with contextlib.suppress(EOFError), gzip.open(path) as file:
        while chunk := file.read1(1 << 16):
            text += chunk
    return text.decode().splitlines()


def test_token_is_required_and_readable_by_its_owner_only(instance: BatchjobUp) -> None:
    assert stat.S_IMODE((instance.data_directory / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(instance.data_directory.stat().st_mode) == 0o700
    for headers in ({}, {"Authorization": "Bearer bj_wrong"}):
        with pytest.raises(urllib.error.HTTPError) as raised:
            instance.get("/api/v1/jobs", **headers)
        assert raised.value.code == 401


@pytest.mark.parametrize("fetch", [partial(BatchjobUp.get, path="/metrics"), BatchjobUp.scrape])
def test_metrics_require_token_and_known_host_name(
    instance: BatchjobUp, fetch: Callable[..., str]
) -> None:
    bearer = {"Authorization": f"Bearer {instance.token()}"}
    assert "batchjob_" in fetch(instance, **bearer)
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer bj_wrong"}, 401),
        ({"Authorization": f"Basic {instance.token()}"}, 401),
        ({**bearer, "Host": "rebound.example"}, 421),
    ):
        with pytest.raises(urllib.error.HTTPError) as raised:
            fetch(instance, **headers)
        assert raised.value.code == status


def test_commands_say_what_has_just_happened_to_a_run(instance: BatchjobUp) -> None:
    data = instance.data_directory
    run_command(data, "run", "--name=brief", "--", "true")
    listed = json.loads(run_command(data, "jobs", "--name=brief", "--format=json").stdout)
    assert [row["state"] for row in listed] == ["COMPLETED"]
    run_command(data, "run", "--detach", "--name=long", "--", "sleep", "600")
    assert "RUNNING" in run_command(data, "job", "long").stdout
    run_command(data, "stop", "--grace=0", "long")
    assert "RUNNING" not in run_command(data, "job", "long").stdout


def test_gpus_of_a_run_are_measured(tmp_path: Path) -> None:
    """As user and over the API; without a GPU to spare, it waits."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if reason := creation_error():
        pytest.skip(f"no cgroup for runs: {reason}")
    driver = FakeNvml(tmp_path / "nvml")
    driver.add_gpus(2)
    driver.set({f"gpu{n}.uuid": f"GPU-{uuid.uuid4()}" for n in range(2)})
    environment = ENVIRONMENT | programs_environment(tmp_path, compile_into(tmp_path))
    data = tmp_path / "data"

    def command(*arguments: str) -> str:
        subcommand, *others = arguments
        return run_command(data, subcommand, *others, environment=environment).stdout

    with running_batchjob_up(
        data, tmp_path / "log", "--runs.remote", environment=environment
    ) as instance:
        script = f"echo $$ > {tmp_path}/pid; exec sleep 600"
        command("run", "--detach", "--gpus=1", "--name=train", "--", "sh", "-c", script)
        pid = (tmp_path / "pid").read_text().strip()
        driver.set({"gpu0.process0": f"{pid} 500000000 COMPUTE 4294967295 4294967295 50"})
        train = instance.get_api("runs/train")
        assert (train["gpus"], train["gpu_list"]) == (1, "0")

        def measured() -> bool:
            lines = command("metrics", "--type=gpu", "--limit=1", "train").splitlines()
            return "477 MiB    74.5 GiB" in lines[-1]

        until(measured, "its GPU's memory", 60)
        # Jobs of a Slurm that another test runs on this machine name GPUs, too.
        lines = instance.scrape(Authorization=f"Bearer {instance.token()}").splitlines()
        own = f'batchjob_job_gpu_info{{manager="local",jobid="{train["id"]}"'
        (info,) = (line for line in lines if line.startswith(own))
        assert driver.keys["gpu0.uuid"] in info
        assert 'source="CUDA_VISIBLE_DEVICES"' in info
        command("run", "--detach", "--gpus=2", "--name=both", "--", "sleep", "600")
        both = instance.get_api("runs/both")
        assert (both["state"], both["reason"]) == ("PENDING", "1 of 2 GPUs free, 2 asked for")
        command("cancel", "both")
        command("stop", "--grace=0", "train")
        until(lambda: "(train) ended: stopped" in (tmp_path / "log").read_text(), "its line", 20)


def test_metrics_are_not_exposed_without_exporter_address(tmp_path: Path) -> None:
    with running_batchjob_up(
        tmp_path / "data", tmp_path / "log", "--exporter-address="
    ) as instance:
        assert "not exposed; set --exporter-address=" in instance.log.read_text()
        with pytest.raises(urllib.error.URLError, match="refused"):
            instance.scrape()


def test_unknown_host_name_is_rejected(instance: BatchjobUp) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        instance.get("/", Host="rebound.example", Cookie=_login_cookie(instance))
    assert raised.value.code in (400, 403, 421)


def test_second_instance_reports_conflict(instance: BatchjobUp, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "batchjob_cli", "up", "--data", str(instance.data_directory)]
    listen_conflict = run(
        [*argv[:-1], str(tmp_path), f"--listen-address={instance.web_address}"], env=ENVIRONMENT
    )
    assert listen_conflict.returncode == 2
    assert (
        f"{instance.web_address}: Address already in use; use --listen-address"
        in listen_conflict.stderr
    )
    (port,) = free_ports(1)
    exporter_conflict = run(
        [
            *argv[:-1],
            str(tmp_path / "other"),
            f"--listen-address=127.0.0.1:{port}",
            f"--exporter-address={instance.exporter_address}",
        ],
        env=ENVIRONMENT,
    )
    assert exporter_conflict.returncode == 2
    assert exporter_conflict.stderr == (
        f"batchjob: --exporter-address: cannot listen on {instance.exporter_address}: "
        "Address already in use\n"
    )
    (port,) = free_ports(1)
    data_conflict = run([*argv, f"--listen-address=127.0.0.1:{port}"], env=ENVIRONMENT)
    assert data_conflict.returncode == 5
    url, pid = f"http://{instance.web_address}", instance.process.pid
    assert f"already served by batchjob up at {url} (process {pid})" in data_conflict.stderr
    assert "Traceback" not in listen_conflict.stderr + data_conflict.stderr


def test_next_port_is_taken_unless_an_address_was_asked_for(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # some other program may hold it already
            stack.enter_context(socket.create_server(("127.0.0.1", 10912)))
        log = tmp_path / "log"
        argv = [sys.executable, "-m", "batchjob_cli", "up", f"--data={tmp_path / 'data'}"]
        stack.enter_context(daemon(argv, log, env=ENVIRONMENT))
        until(lambda: "metrics " in log.read_text(), "up", 60)
        found = re.search(
            r"^port      10912 is in use; the pages are on (\d+)\npages     http://127.0.0.1:\1/",
            log.read_text(), re.MULTILINE,
        )  # fmt: skip
        assert found, log.read_text()
        jobs = run_command(tmp_path / "data", "jobs")
        assert (jobs.returncode, jobs.stdout) == (0, "No job matches.\n"), jobs.stderr


def test_listening_on_all_addresses_prints_warning(tmp_path: Path) -> None:
    data_directory = tmp_path / "data"
    with running_batchjob_up(data_directory, tmp_path / "log", listen_host="0.0.0.0") as instance:
        log_text = (tmp_path / "log").read_text()
        jobs = run_command(data_directory, "jobs")
    port = instance.web_address.rpartition(":")[2]
    assert f"pages     http://{socket.gethostname()}:{port}/?token=" in log_text
    assert "warning   token and pages are sent unencrypted; set --web.tls" in log_text
    assert (jobs.returncode, jobs.stdout) == (0, "No job matches.\n"), jobs.stderr


def test_demo_shows_jobs_only_while_it_runs(tmp_path: Path) -> None:
    with running_batchjob_up(tmp_path / "data", tmp_path / "log", "--demo") as instance:
        until(lambda: len(instance.get_api("jobs?cluster=local")) >= 5, "five jobs", 60)
        until(
            lambda: "FAILED" in {job["state"] for job in instance.get_api("jobs?cluster=local")},
            "one fails",
            60,
        )
        for job in instance.get_api("jobs?cluster=local"):
            run_command(instance.data_directory, "stop", job["jobid"])
    assert "a generated cluster, " in (tmp_path / "log").read_text()
    with running_batchjob_up(tmp_path / "data", tmp_path / "log") as instance:
        assert {job["cluster"] for job in instance.get_api("jobs")} == {"local"}
