"""docs/guide/one_node.md and docs/exporter.md, typed on a clean Debian booted with systemd."""

import json
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.e2e import booted, clean_debian
from tests.e2e.exporter import parse
from tests.e2e.reader import Reader
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

GUIDE = "docs/guide/one_node.md"
EXPORTER = "docs/exporter.md"
PATIENCE_SECONDS = 300.0  # pip installs 160 MB, on a machine that is busy with others
PROMETHEUS = "192.0.2.10"  # an address that the pages let read


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Iterator[Reader]:
    """In a checkout; pip finds beside it what it would fetch."""
    if not long_form:
        pytest.skip("only with --long: minutes of installing")
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("debian")
    root = folder / "root"
    clean_debian.make(root, "python3", "python3-venv", "iproute2")
    environment = clean_debian.collect_wheels(root / "wheels", "all")
    clean_debian.copy_checkout(root / "root/batchjob")
    with booted.machine(root) as machine:
        machine.run("ip", "address", "add", f"{PROMETHEUS}/24", "dev", "lo")
        yield Reader(machine, "/root/batchjob", environment)
    shutil.rmtree(folder, ignore_errors=True)


def test_quick_start_and_once_output(reader: Reader) -> None:
    with reader.start_block(GUIDE, "python3 -m venv .venv") as command:
        until(lambda: "?token=" in command.printed(), "an address", PATIENCE_SECONDS, 0.5)
        until(lambda: _measured_jobs(reader) == 5, "five live jobs", PATIENCE_SECONDS, 0.5)
        text = reader.run_block(GUIDE, ".venv/bin/batchjob_exporter --once")
        assert 'batchjob_job_info{manager="local"' in text
        assert "jobs of local can be seen" in text  # as doctor says


def _measured_jobs(reader: Reader) -> int:
    """Jobs of the demonstration that are there; 0 until one of them is measured."""
    argv = (f"{reader.folder}/.venv/bin/batchjob", "jobs", "--cluster=local", "--format=json")
    rows = json.loads(reader.machine.run(*argv))
    return len(rows) if any(row["cpu_used_seconds"] for row in rows) else 0


def test_exporter_for_one_network(reader: Reader) -> None:
    with reader.start_block(GUIDE, ".venv/bin/batchjob_exporter --web.listen-address"):
        _served(reader)


def test_exporter_under_systemd(reader: Reader) -> None:
    text = reader.run_block(EXPORTER, "python3 -m venv /opt/batchjob")
    assert "batchjob_exporter_build_info" in text
    reader.run_block(EXPORTER, "cp deploy/systemd/batchjob_exporter.service")
    _served(reader)


def _served(reader: Reader) -> None:
    """To the addresses that the page names, and to no other."""
    until(lambda: _fetch(reader, PROMETHEUS), "an answer")
    scrape = parse(_fetch(reader, PROMETHEUS), time.time())
    assert scrape.value("batchjob_scrape_collector_success", collector="jobs") == 1
    assert not _fetch(reader, "127.0.0.1")


READ = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1]).read().decode())
except OSError:
    pass
"""


def _fetch(reader: Reader, address: str) -> str:
    return reader.machine.run("python3", "-c", READ, f"http://{address}:10910/metrics")
