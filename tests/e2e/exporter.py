"""The exporter as its users start it: a process of its own, scraped over HTTP.

with exporter.running("--collector.disable-defaults", "--collector.jobs") as target:
    target.scrape().value("batchjob_jobs", manager="slurm")
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.processes import daemon, end, free_ports
from tests.helpers.waiting import until

REPOSITORY = Path(__file__).parents[2]
PROGRAM = ("batchjob_exporter",)
AS_THE_UNIT = {"MALLOC_ARENA_MAX": "1"}  # deploy/systemd/batchjob_exporter.service


class Scrape(NamedTuple):
    """One exposition: its samples by name, and when it was asked for (epoch seconds)."""

    time: float
    text: str
    samples: Mapping[str, list[tuple[dict[str, str], float]]]

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Samples of `name` that carry these labels."""
        return [
            (found, value)
            for found, value in self.samples.get(name, [])
            if labels.items() <= found.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the one sample there may be; None without."""
        found = self.series(name, **labels)
        assert len(found) <= 1, f"{name} {labels}: {found}"
        return found[0][1] if found else None

    def total(self, name: str, **labels: str) -> float:
        """Sum over all samples of `name` that carry these labels."""
        return sum(value for _, value in self.series(name, **labels))


def parse(text: str, at: float) -> Scrape:
    """Read an exposition as Prometheus' own client does, and insist that no series is twice."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in seen, f"series twice: {key}"
            seen.add(key)
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return Scrape(at, text, samples)


class Target(NamedTuple):
    """A running exporter; made by `running()`."""

    address: str
    pid: int
    log: Path

    def scrape(self, timeout: float = 15.0) -> Scrape:
        """Fetch `/metrics` now."""
        at = time.time()
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=timeout) as answer:
            return parse(answer.read().decode(), at)

    def inotify_watches(self) -> int:
        """How many the kernel keeps for it (proc(5), /proc/<pid>/fdinfo)."""
        watches = 0
        for info in Path(f"/proc/{self.pid}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                watches += info.read_text().count("inotify wd:")
        return watches

    def answers(self) -> bool:
        """Whether it serves."""
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2).close()
        except urllib.error.HTTPError as error:
            return error.code == 400  # "this port speaks HTTPS"
        except (OSError, urllib.error.URLError):
            return False
        return True

    def listens(self) -> bool:
        """Whether it takes connections."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def running(
    *flags: str,
    inside: Sequence[str] = (),
    ready: Callable[[Target], bool] = Target.answers,
    program: Sequence[str] = PROGRAM,
) -> Iterator[Target]:
    """Start an exporter on a free port of loopback; `inside` is a prefix of its command line.

    `program`: the module that is run, and what it takes before the flags.

    Its log is printed (pytest shows it when the test fails), and a traceback in it is a failure.
    """
    address = f"127.0.0.1:{free_ports(1)[0]}"
    argv = [
        *inside, sys.executable, "-m", *program,
        f"--web.listen-address={address}", *flags,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        log = Path(folder) / "log"
        env = {
            **AS_THE_UNIT,
            "PYTHONPATH": str(REPOSITORY),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        try:
            with daemon(argv, log, env) as process:
                target = Target(address, process.pid, log)
                until(lambda: _serving(process, target, ready), "exporter ready")
                yield target
        finally:
            print(log.read_text())
        assert "Traceback" not in log.read_text()


@contextlib.contextmanager
def as_the_unit(
    *flags: str, changed: Mapping[str, str] | None = None, inside: Sequence[str] = ()
) -> Iterator[Target]:
    """Start an exporter with the priority and the rights its systemd unit gives it. Needs root.

    `changed` are settings of the unit that a drop-in changes, `inside` a prefix as of `running`.
    """
    text = (REPOSITORY / "deploy/systemd/batchjob_exporter.service").read_text()
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    unit = {name: value for name, equals, value in lines if equals} | dict(changed or {})
    rights = ",".join(
        f"+{name.removeprefix('CAP_').lower()}" for name in unit["AmbientCapabilities"].split()
    )
    inside = (
        *inside, "nice", "-n", unit["Nice"],
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
        f"--inh-caps=-all,{rights}", f"--ambient-caps=-all,{rights}",
        f"--bounding-set=-all,{rights}",
    )  # fmt: skip
    with running(*flags, inside=inside) as target:
        yield target


@contextlib.contextmanager
def helper_as_the_unit(folder: Path) -> Iterator[str]:
    """Start the helper as its unit runs, which answers the exporter's user only; its socket."""
    path = folder / "helper"
    owned = folder / "owned"  # as the unit's StateDirectory, which says whom to answer
    owned.mkdir()
    os.chown(owned, 65534, 65534)
    unit = (REPOSITORY / "deploy/systemd/batchjob_helper.service").read_text()
    (rights,) = re.findall("^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    bounds = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in rights.split())
    argv = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{bounds}", sys.executable, "-m",
            "batchjob_exporter.helper", "--listen", str(path),
            "--exporter-directory", str(owned)]  # fmt: skip
    process = subprocess.Popen(argv)
    try:
        yield str(path)
    finally:
        end(process)


def _serving(process: Popen[bytes], target: Target, ready: Callable[[Target], bool]) -> bool:
    assert process.poll() is None, f"exporter ended: {target.log.read_text()}"
    return ready(target)
