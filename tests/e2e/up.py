"""`batchjob up` as a process of its own, and the commands that one gives beside it."""

import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.processes import free_ports, until

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
def launched(data: Path, log: Path, *flags: str, host: str = "127.0.0.1") -> Iterator[Up]:
    """Start it, and end it as Ctrl-C does where it still runs."""
    web, exporter = (f"127.0.0.1:{port}" for port in free_ports(2))
    listen = f"{host}:{web.rpartition(':')[2]}"
    argv = [
        sys.executable, "-m", "batchjob_cli", "up", f"--data={data}", f"--listen-address={listen}",
        f"--exporter-address={exporter}", *flags,
    ]  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=ENVIRONMENT, cwd="/")
    try:
        yield Up(process, data, log, web, exporter)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    assert "Traceback" not in log.read_text()


@contextlib.contextmanager
def up(data: Path, log: Path, *flags: str, host: str = "127.0.0.1") -> Iterator[Up]:
    """The same, once it answers."""
    with launched(data, log, *flags, host=host) as made:
        until(lambda: made.process.poll() is not None or made.answers(), f"up: {log}", 60)
        assert made.process.poll() is None, log.read_text()
        yield made


def command(data: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`batchjob NAME ...` of a data directory."""
    argv = [sys.executable, "-m", "batchjob_cli", name, "--data", str(data), *arguments]
    return subprocess.run(
        argv, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
    )
