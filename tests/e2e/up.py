"""`batchjob up` as a separate process, and the commands that users run against it."""

import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.processes import end, free_ports, run
from tests.helpers.waiting import scaled, until

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
}  # fmt: skip


class BatchjobUp(NamedTuple):
    """A running `batchjob up`."""

    process: subprocess.Popen[bytes]
    data_directory: Path
    log: Path
    web_address: str
    exporter_address: str

    def token(self) -> str:
        return (self.data_directory / "token").read_text().strip()

    def get(self, path: str, **headers: str) -> str:
        return self._fetch(f"http://{self.web_address}{path}", headers)

    def scrape(self, **headers: str) -> str:
        return self._fetch(f"http://{self.exporter_address}/metrics", headers)

    @staticmethod
    def _fetch(url: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=scaled(10)) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def get_api(self, path: str) -> Any:
        return json.loads(self.get(f"/api/v1/{path}", Authorization=f"Bearer {self.token()}"))

    def is_ready(self) -> bool:
        try:
            self.get("/-/ready")
        except OSError:
            return False
        return True


@contextlib.contextmanager
def launch_batchjob_up(
    data_directory: Path,
    log: Path,
    *flags: str,
    listen_host: str = "127.0.0.1",
    environment: Mapping[str, str] = ENVIRONMENT,
) -> Iterator[BatchjobUp]:
    """Start `batchjob up`; interrupt it at the end, as Ctrl-C does, if it still runs."""
    web_address, exporter_address = (f"127.0.0.1:{port}" for port in free_ports(2))
    listen_address = f"{listen_host}:{web_address.rpartition(':')[2]}"
    argv = [
        sys.executable, "-m", "batchjob_cli", "up", f"--data={data_directory}",
        f"--listen-address={listen_address}", f"--exporter-address={exporter_address}", *flags,
    ]  # fmt: skip
    with log.open("ab") as log_file:
        process = subprocess.Popen(argv, stdout=log_file, stderr=log_file, env=environment, cwd="/")
    try:
        yield BatchjobUp(process, data_directory, log, web_address, exporter_address)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(scaled(30))
            end(process)
    assert "Traceback" not in log.read_text()


@contextlib.contextmanager
def running_batchjob_up(
    data_directory: Path,
    log: Path,
    *flags: str,
    listen_host: str = "127.0.0.1",
    environment: Mapping[str, str] = ENVIRONMENT,
) -> Iterator[BatchjobUp]:
    """Start `batchjob up` and wait until it is ready."""
    with launch_batchjob_up(
        data_directory, log, *flags, listen_host=listen_host, environment=environment
    ) as instance:
        until(lambda: instance.process.poll() is not None or instance.is_ready(), f"up: {log}", 60)
        assert instance.process.poll() is None, log.read_text()
        yield instance


def run_command(
    data_directory: Path,
    subcommand: str,
    *arguments: str,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> subprocess.CompletedProcess[str]:
    """Run `batchjob SUBCOMMAND ...` on a data directory."""
    argv = [
        sys.executable,
        "-m",
        "batchjob_cli",
        subcommand,
        "--data",
        str(data_directory),
        *arguments,
    ]
    return run(argv, timeout=120, env=environment)
