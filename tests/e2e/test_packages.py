"""Packages are built and installed into a clean Debian; its systemd starts their units."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchjob import __version__
from tests.e2e import booted, clean_debian
from tests.e2e.exporter import parse
from tests.e2e.processes import call, until
from tests.e2e.reader import Reader

pytestmark = pytest.mark.e2e

ROOT = clean_debian.ROOT
PYTHON = clean_debian.PYTHON
PAGE = "docs/packages.md"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all packages."""
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    output = tmp_path_factory.mktemp("dist")
    clean_debian.build(output)
    return output


@pytest.fixture(scope="module")
def machine(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[booted.Machine]:
    """A clean Debian with the packages installed, booted by its systemd."""
    root = tmp_path_factory.mktemp("debian") / "root"
    clean_debian.make(root, clean_debian.python_package(), "openssl")
    for deb in built.glob("*.deb"):
        shutil.copy(deb, root / "root")
    with booted.machine(root) as made:
        reader = Reader(made)
        reader.types(PAGE, "apt install ./batchjob-exporter")
        made.run("sh", "-c", "apt install /root/batchjob-server_*.deb")
        (root / "etc/batchjob/stats_db.yml").write_text(STATS_DB)
        reader.types(PAGE, "runuser -u batchjob")
        yield made
    shutil.rmtree(root, ignore_errors=True)


STATS_DB_COMMAND = ("batchjob_stats_db", "--config.file=/etc/batchjob/stats_db.yml")
STATS_DB = """
db: {url: "sqlite:////var/lib/batchjob/jobs.db"}
web: {listen-address: "127.0.0.1:10911"}
backup: {directory: /var/backups/batchjob, keep: 14}
clusters: [{name: alpha, sources: {jsonl: {path: /var/lib/batchjob}}}]
"""
READ = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())"


def read(machine: booted.Machine, port: int, path: str) -> str:
    """What is answered inside the machine, once something is."""
    argv = ("/opt/batchjob/exporter/bin/python", "-c", READ, f"http://127.0.0.1:{port}{path}")
    until(lambda: machine.succeeds(*argv), f"an answer of port {port}")
    return machine.run(*argv)


def test_directories_are_made(machine: booted.Machine) -> None:
    told = machine.run("stat", "--format=%A %U %n", "/var/lib/batchjob", "/var/backups/batchjob",
                       "/run/batchjob-gpus")  # fmt: skip
    assert told.splitlines() == [
        "drwxr-x--- batchjob /var/lib/batchjob",
        "drwx------ batchjob /var/backups/batchjob",
        "drwxr-xr-x root /run/batchjob-gpus",
    ]
    for name in ("prolog", "epilog"):
        assert machine.succeeds("test", "-x", f"/usr/libexec/batchjob/gpu_{name}.sh")
    for name in ("prometheus/rules/jobs.yml", "grafana/provisioning/datasources/batchjob.yml",
                 "victoriametrics/vmagent.service"):  # fmt: skip
        assert machine.succeeds("test", "-r", f"/usr/share/batchjob/{name}")


def test_the_exporters_unit_is_scraped(machine: booted.Machine) -> None:
    scrape = parse(read(machine, 10910, "/metrics"), time.time())
    assert scrape.value("batchjob_exporter_build_info", version=__version__) == 1
    assert scrape.value("batchjob_scrape_collector_success", collector="jobs") == 1


def test_poller_and_server_start_in_their_sandboxes(machine: booted.Machine) -> None:
    assert "batchjob_stats_db_poll_interval_seconds" in read(machine, 10911, "/metrics")
    assert read(machine, 10912, "/-/ready")
    for path in ("jobs.db", "jobs.db-wal"):
        told = machine.run("stat", "--format=%a %U", f"/var/lib/batchjob/{path}")
        assert told.split() == ["600", "batchjob"]


def test_the_proxys_secret_is_for_the_server_to_read(machine: booted.Machine) -> None:
    Reader(machine).types("docs/guide/proxy.md", "openssl rand -hex 32")
    secret = "/etc/batchjob/proxy.secret"
    assert machine.run("stat", "--format=%a %U %G", secret).split() == ["640", "root", "batchjob"]
    read = machine.run("runuser", "-u", "batchjob", "--", "cat", secret)
    assert len(read.strip()) == 64


def test_a_backup_each_day(machine: booted.Machine) -> None:
    Reader(machine).types("docs/stats_db.md", "systemctl enable --now batchjob_backup.timer")
    assert "batchjob_backup.timer" in machine.run("systemctl", "list-timers", "--all")
    (copy,) = machine.run("ls", "/var/backups/batchjob").split()
    assert copy.startswith("batchjob-")
    newest = 'batchjob_stats_db_backup_timestamp_seconds{directory="/var/backups/batchjob"} 1'
    until(lambda: newest in read(machine, 10911, "/metrics"), "the poller sees the backup")


def test_restore(machine: booted.Machine) -> None:
    (copy,) = machine.run("ls", "/var/backups/batchjob").split()
    argv = (*STATS_DB_COMMAND, "restore", f"/var/backups/batchjob/{copy}")
    assert not machine.succeeds(*argv)  # poller and server hold it
    machine.run("systemctl", "stop", "batchjob_stats_db")
    assert not machine.succeeds(*argv)  # the server still does
    begin = "systemctl stop batchjob_stats_server"
    named = {"batchjob-20260131T003112Z.db": copy}
    assert "restored" in Reader(machine).types("docs/stats_db.md", begin, named)
    assert read(machine, 10912, "/-/ready")


def test_what_passes_is_tried_again(machine: booted.Machine) -> None:
    """Here another writer, who goes away; a database that is away ends with the same status."""
    machine.run("systemctl", "stop", "batchjob_stats_db")
    hold = ("flock", "/var/lib/batchjob/jobs.db.writer", "sleep", "5")
    machine.run("systemd-run", "--unit=holder", *hold)
    until(lambda: machine.shown("holder", "SubState") == "running", "the lock is held")
    assert not machine.succeeds("systemctl", "start", "batchjob_stats_db")
    assert machine.shown("batchjob_stats_db", "SubState") == "auto-restart"
    until(
        lambda: machine.shown("batchjob_stats_db", "ActiveState") == "active",
        "the poller runs again", 40,
    )  # fmt: skip


def test_what_is_wrong_is_not_tried_again(machine: booted.Machine) -> None:
    config = machine.root / "etc/batchjob/stats_db.yml"
    config.write_text(STATS_DB + "nonsense: 1\n")
    assert not machine.succeeds("systemctl", "restart", "batchjob_stats_db")
    assert machine.shown("batchjob_stats_db", "ActiveState") == "failed"
    config.write_text(STATS_DB)
    machine.run("systemctl", "reset-failed", "batchjob_stats_db")
    machine.run("systemctl", "start", "batchjob_stats_db")


def test_the_command_batchjob_takes_what_is_installed(machine: booted.Machine) -> None:
    assert machine.run("batchjob", "--version").split() == ["batchjob", __version__]
    machine.run("mv", "/opt/batchjob/server", "/opt/batchjob/elsewhere")
    try:
        assert machine.run("batchjob", "--version").split() == ["batchjob", __version__]
    finally:
        machine.run("mv", "/opt/batchjob/elsewhere", "/opt/batchjob/server")


def test_configuration_is_kept_and_the_rest_goes(machine: booted.Machine) -> None:
    listed = (machine.root / "var/lib/dpkg/info/batchjob-server.conffiles").read_text().split()
    assert set(listed) == {
        f"/etc/batchjob/{name}.yml" for name in ("cluster", "server", "stats_db")
    }
    machine.run("dpkg", "--remove", "batchjob-server")
    assert (machine.root / "etc/batchjob/server.yml").exists()
    assert machine.shown("batchjob_stats_server", "ActiveState") == "inactive"
    assert not (machine.root / "opt/batchjob/server").exists()
    assert (machine.root / "opt/batchjob/bin/batchjob_exporter").exists()


def test_rpm_packages(built: Path, tmp_path: Path) -> None:
    (exporter,) = built.glob("batchjob-exporter-*.rpm")
    (server,) = built.glob("batchjob-server-*.rpm")
    assert "/usr/bin/python3." in call("rpm", "-qpR", str(exporter))
    assert f"batchjob-exporter = {__version__}" in call("rpm", "-qpR", str(server))
    assert "/etc/batchjob/server.yml" in call("rpm", "-qpc", str(server)).split()
    assert "useradd" in call("rpm", "-qp", "--scripts", str(server))
    root = tmp_path / "root"
    options = ["--root", str(root), "--nodeps", "--noscripts"]
    call("rpm", *options, "-i", str(exporter), str(server))
    call("rpm", "--root", str(root), "-V", "--nodeps", "batchjob-exporter", "batchjob-server")
    call("rpm", *options, "-e", "batchjob-server")
    assert not (root / "opt/batchjob/server").exists()


def test_the_one_file_runs_where_nothing_can_be_unpacked(built: Path, tmp_path: Path) -> None:
    program = tmp_path / "batchjob_exporter.pyz"
    shutil.copy(built / program.name, program)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": "/nowhere", "HOME": "/nowhere"}
    text = call(PYTHON, str(program), "--once", env=environment)
    assert parse(text, 0).value("batchjob_scrape_collector_success", collector="jobs") == 1
    assert __version__ in call(PYTHON, str(program), "--version", env=environment)


def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    (wheel,) = built.glob("*.whl")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    call(*argv, str(source))
    assert (tmp_path / wheel.name).stat().st_size == wheel.stat().st_size


def test_the_same_commit_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Elsewhere, by someone with another umask, time zone and home."""
    copy = tmp_path / "deeper" / "copy"
    call("git", "clone", "--quiet", str(ROOT), str(copy))
    if call("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        pytest.skip("the checkout has changes that its last commit has not")
    environment = {
        **os.environ, "HOME": str(tmp_path), "TZ": "Pacific/Kiritimati", "PYTHONPATH": str(copy),
    }  # fmt: skip
    output = tmp_path / "out"
    argv = [sys.executable, "-m", "deploy.packages.build", "--output", str(output)]
    call(*argv, "--python", PYTHON, cwd=copy, env=environment, umask=0o077)
    assert (output / "SHA256SUMS").read_text() == (built / "SHA256SUMS").read_text()


def test_sums_and_bills_of_materials(built: Path) -> None:
    listed = call("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=built)
    assert listed == ""
    names = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert names == {path.name for path in built.iterdir()} - {"SHA256SUMS"}
    (bill,) = built.glob("batchjob-server-*.cdx.json")
    told = json.loads(bill.read_text())
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == (
        "CycloneDX", "batchjob-server",
    )  # fmt: skip
    urls = {each.get("purl", "").partition("@")[0] for each in told["components"]}
    assert {"pkg:pypi/sqlalchemy", "pkg:pypi/fastapi", "pkg:pypi/pyyaml"} <= urls
