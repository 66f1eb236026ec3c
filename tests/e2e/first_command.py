"""The README's first command, typed, and how long it takes until all that it promises is seen."""

import contextlib
import http.cookiejar
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.processes import end, free_ports
from tests.helpers.waiting import scaled, until

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 180.0  # on a machine that is busy with others
TICKS = os.sysconf("SC_CLK_TCK")


class StartupTimes(NamedTuple):
    """Seconds since the command was given, and the CPU time it had used when all was seen."""

    address_seconds: float
    all_seconds: float
    cpu_seconds: float


def arguments() -> list[str]:
    """What the README's first block starts, once it is installed."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    install, _, command = block[1].strip().rpartition("&&")
    assert "pip install" in install
    program, *given = shlex.split(command)
    assert program.endswith("/batchjob")
    return given


class Visitor:
    """Somebody who opens the address that was printed."""

    def __init__(self, address: str) -> None:
        self._base = address.partition("?")[0].rstrip("/")
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)
        self._read(address)

    def page(self, path: str) -> str:
        return self._read(f"{self._base}{path}")

    def rows(self, **parameters: str) -> Any:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return json.loads(self.page(f"/api/v1/jobs?{query}"))

    def _read(self, address: str) -> str:
        request = urllib.request.Request(address, headers={"Sec-Fetch-Site": "none"})
        with self._opener.open(request, timeout=scaled(60)) as answer:
            return str(answer.read().decode())


def run_first_command(folder: Path, python: str = sys.executable) -> StartupTimes:
    """Give the command, with a data directory and a port of its own, and end it when all is seen.

    Its modules have been compiled before, as pip compiles what it installs.
    """
    (port,) = free_ports(1)
    environment = {
        **os.environ, "BATCHJOB_DATA": str(folder / "data"), "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
    }  # fmt: skip
    for buffering in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        environment.pop(buffering, None)
    program = [python, "-m", "batchjob_cli"]
    subprocess.run([*program, "up", "--help"], env=environment, check=True, capture_output=True)
    log, begun = folder / "log", time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*program, *arguments(), f"--listen-address=127.0.0.1:{port}"], stdout=out, stderr=out,
            env=environment, cwd=folder,
        )  # fmt: skip
    try:
        printed = until(
            lambda: re.search(r"http://\S+\?token=\S+", log.read_text()), f"an address: {log}",
            PATIENCE_SECONDS,
        )  # fmt: skip
        address_seconds = time.monotonic() - begun
        visitor = Visitor(printed[0])
        until(lambda: not missing(visitor), "jobs of all kinds", PATIENCE_SECONDS, 0.3)
        look = StartupTimes(address_seconds, time.monotonic() - begun, cpu_seconds(process.pid))
        for row in visitor.rows(cluster="local"):
            stop = [*program, "stop", "--grace=0", row["jobid"]]
            subprocess.run(stop, env=environment, capture_output=True, check=False)
        return look
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(scaled(60))
        end(process)


def missing(visitor: Visitor) -> set[str]:
    """What is not seen yet: live jobs with numbers, and a month of a cluster with reports."""
    live = visitor.rows(cluster="local")
    seen = {
        "five live jobs": len(live) == 5,
        "numbers of live jobs": any(row["cpu_used_seconds"] for row in live)
        and any(row["memory_used_bytes"] for row in live),
    }
    if all(seen.values()):  # else the questions would take the time that is measured
        seen |= _of_a_month(visitor)
    return {what for what, there in seen.items() if not there}


def _of_a_month(visitor: Visitor) -> dict[str, bool]:
    month = [row for row in visitor.rows(limit="1000") if row["cluster"] != "local"]
    (wasteful, *_) = (
        row for row in month if row["name"] == "variant-calling" and row["state"] == "COMPLETED"
    )
    return {
        "waits": any(row["state"] == "PENDING" for row in month),
        "failures": any(row["state"] == "FAILED" for row in month),
        "energy": any(row["usage_energy_joules"] for row in month),
        "GPUs": any(row["usage_gpu_utilization_ratio"] is not None for row in month),
        "advice": "memory-oversized" in visitor.page(f"/jobs/{wasteful['jobid']}"),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended, proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS
