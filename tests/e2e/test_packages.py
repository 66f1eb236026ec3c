"""Packages are built and installed in a clean Debian, whose systemd starts their units."""

import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchjob import __version__
from tests.e2e import booted, clean_debian
from tests.e2e.exporter import parse
from tests.e2e.reader import Reader
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

ROOT = clean_debian.ROOT
PYTHON = clean_debian.PYTHON
PACKAGES_PAGE = "docs/packages.md"
DEMO = "batchjob_cli/up/demo.jsonl.gz"


@pytest.fixture(scope="module")
def package_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all packages."""
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    output = tmp_path_factory.mktemp("dist")
    clean_debian.build(output)
    return output


@pytest.fixture(scope="module")
def machine(
    package_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[booted.Machine]:
    """A clean Debian with the packages installed, booted by its systemd."""
    root = tmp_path_factory.mktemp("debian") / "root"
    clean_debian.make(root, clean_debian.python_package(), "openssl")
    for deb in package_directory.glob("*.deb"):
        shutil.copy(deb, root / "root")
    with booted.machine(root) as booted_machine:
        reader = Reader(booted_machine)
        reader.run_block(PACKAGES_PAGE, "apt install ./batchjob-exporter")
        booted_machine.run("sh", "-c", "apt install /root/batchjob-server_*.deb")
        (root / "etc/batchjob/stats_db.yml").write_text(STATS_DB)
        reader.run_block(PACKAGES_PAGE, "runuser -u batchjob")
        yield booted_machine
    shutil.rmtree(root, ignore_errors=True)


STATS_DB = """
db: {url: "sqlite:////var/lib/batchjob/jobs.db"}
web: {listen-address: "127.0.0.1:10911"}
backup: {directory: /var/backups/batchjob, keep: 14}
clusters: [{name: alpha, sources: {jsonl: {path: /var/lib/batchjob}}}]
"""
GET_PROGRAM = (
    "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())"
)


def http_get(machine: booted.Machine, port: int, path: str) -> str:
    """Body of a response inside the machine; waits until the port answers."""
    argv = (
        "/opt/batchjob/exporter/bin/python",
        "-c",
        GET_PROGRAM,
        f"http://127.0.0.1:{port}{path}",
    )
    until(lambda: machine.succeeds(*argv), f"an answer of port {port}")
    return machine.run(*argv)


def test_directories_and_files_are_installed(machine: booted.Machine) -> None:
    listing = machine.run("stat", "--format=%A %U %n", "/var/lib/batchjob", "/var/backups/batchjob",
                       "/run/batchjob-gpus")  # fmt: skip
    assert listing.splitlines() == [
        "drwxr-x--- batchjob /var/lib/batchjob",
        "drwx------ batchjob /var/backups/batchjob",
        "drwxr-xr-x root /run/batchjob-gpus",
    ]
    for name in ("prolog", "epilog"):
        assert machine.succeeds("test", "-x", f"/usr/libexec/batchjob/gpu_{name}.sh")
    for name in ("prometheus/rules/jobs.yml", "grafana/provisioning/datasources/batchjob.yml",
                 "victoriametrics/vmagent.service"):  # fmt: skip
        assert machine.succeeds("test", "-r", f"/usr/share/batchjob/{name}")


def test_exporter_unit_serves_metrics(machine: booted.Machine) -> None:
    scrape = parse(http_get(machine, 10910, "/metrics"), time.time())
    assert scrape.value("batchjob_exporter_build_info", version=__version__) == 1
    assert scrape.value("batchjob_scrape_collector_success", collector="jobs") == 1


def test_poller_and_server_start_in_systemd_sandbox(machine: booted.Machine) -> None:
    assert "batchjob_stats_db_poll_interval_seconds" in http_get(machine, 10911, "/metrics")
    assert http_get(machine, 10912, "/-/ready")
    for path in ("jobs.db", "jobs.db-wal"):
        mode_and_owner = machine.run("stat", "--format=%a %U", f"/var/lib/batchjob/{path}")
        assert mode_and_owner.split() == ["600", "batchjob"]


def test_proxy_secret_is_readable_by_server(machine: booted.Machine) -> None:
    Reader(machine).run_block("docs/guide/proxy.md", "openssl rand -hex 32")
    secret = "/etc/batchjob/proxy.secret"
    assert machine.run("stat", "--format=%a %U %G", secret).split() == ["640", "root", "batchjob"]
    content = machine.run("runuser", "-u", "batchjob", "--", "cat", secret)
    assert len(content.strip()) == 64


def test_daily_backup(machine: booted.Machine) -> None:
    Reader(machine).run_block("docs/stats_db.md", "systemctl enable --now batchjob_backup.timer")
    assert "batchjob_backup.timer" in machine.run("systemctl", "list-timers", "--all")
    (backup,) = machine.run("ls", "/var/backups/batchjob").split()
    assert backup.startswith("batchjob-")
    backup_metric = (
        'batchjob_stats_db_backup_timestamp_seconds{directory="/var/backups/batchjob"} 1'
    )
    until(
        lambda: backup_metric in http_get(machine, 10911, "/metrics"),
        "the poller sees the backup",
    )


def test_restored_backup_is_used(machine: booted.Machine) -> None:
    (backup,) = machine.run("ls", "/var/backups/batchjob").split()
    first_line = "systemctl stop batchjob_stats_server"
    replacements = {"batchjob-20260131T003112Z.db": backup}
    assert "schema" in Reader(machine).run_block("docs/stats_db.md", first_line, replacements)
    assert http_get(machine, 10912, "/-/ready")


def test_poller_is_restarted_after_temporary_failure(machine: booted.Machine) -> None:
    """Another writer holds the lock; an unreachable database has the same exit status."""
    machine.run("systemctl", "stop", "batchjob_stats_db")
    lock_command = ("flock", "/var/lib/batchjob/jobs.db.writer", "sleep", "infinity")
    machine.run("systemd-run", "--unit=holder", *lock_command)
    until(lambda: machine.unit_property("holder", "SubState") == "running", "the lock is held")
    assert not machine.succeeds("systemctl", "start", "batchjob_stats_db")
    assert machine.unit_property("batchjob_stats_db", "SubState") == "auto-restart"
    machine.run("systemctl", "stop", "holder")
    until(
        lambda: machine.unit_property("batchjob_stats_db", "ActiveState") == "active",
        "the poller runs again", 40,
    )  # fmt: skip


def test_poller_is_not_restarted_after_configuration_error(machine: booted.Machine) -> None:
    config = machine.root / "etc/batchjob/stats_db.yml"
    config.write_text(STATS_DB + "nonsense: 1\n")
    assert not machine.succeeds("systemctl", "restart", "batchjob_stats_db")
    assert machine.unit_property("batchjob_stats_db", "ActiveState") == "failed"
    config.write_text(STATS_DB)
    machine.run("systemctl", "reset-failed", "batchjob_stats_db")
    machine.run("systemctl", "start", "batchjob_stats_db")


def test_batchjob_command_works_with_either_package(machine: booted.Machine) -> None:
    assert machine.run("batchjob", "--version").split() == ["batchjob", __version__]
    machine.run("mv", "/opt/batchjob/server", "/opt/batchjob/elsewhere")
    try:
        assert machine.run("batchjob", "--version").split() == ["batchjob", __version__]
    finally:
        machine.run("mv", "/opt/batchjob/elsewhere", "/opt/batchjob/server")


def test_package_removal_keeps_configuration(machine: booted.Machine) -> None:
    conffiles = (machine.root / "var/lib/dpkg/info/batchjob-server.conffiles").read_text().split()
    assert set(conffiles) == {
        f"/etc/batchjob/{name}.yml" for name in ("cluster", "server", "stats_db")
    }
    machine.run("dpkg", "--remove", "batchjob-server")
    assert (machine.root / "etc/batchjob/server.yml").exists()
    assert machine.unit_property("batchjob_stats_server", "ActiveState") == "inactive"
    assert not (machine.root / "opt/batchjob/server").exists()
    assert (machine.root / "opt/batchjob/bin/batchjob_exporter").exists()


def test_rpm_packages(package_directory: Path, tmp_path: Path) -> None:
    (exporter,) = package_directory.glob("batchjob-exporter-*.rpm")
    (server,) = package_directory.glob("batchjob-server-*.rpm")
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


def test_zipapp_runs_without_writable_directory(package_directory: Path, tmp_path: Path) -> None:
    program = tmp_path / "batchjob_exporter.pyz"
    shutil.copy(package_directory / program.name, program)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": "/nowhere", "HOME": "/nowhere"}
    text = call(PYTHON, str(program), "--once", env=environment)
    assert parse(text, 0).value("batchjob_scrape_collector_success", collector="jobs") == 1
    assert __version__ in call(PYTHON, str(program), "--version", env=environment)


def test_source_distribution_builds_same_wheel(package_directory: Path, tmp_path: Path) -> None:
    (source,) = package_directory.glob("*.tar.gz")
    (wheel,) = package_directory.glob("*.whl")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    call(*argv, str(source))
    assert (tmp_path / wheel.name).stat().st_size == wheel.stat().st_size


def test_packages_contain_the_recording_of_the_demo(package_directory: Path) -> None:
    (wheel,) = package_directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(DEMO) == (ROOT / DEMO).read_bytes()
    for path in package_directory.glob("*server*.deb"):
        assert DEMO in call("dpkg", "--contents", str(path))
    for path in package_directory.glob("*server*.rpm"):
        assert DEMO in call("rpm", "-qpl", str(path))


def test_build_is_reproducible(package_directory: Path, tmp_path: Path) -> None:
    """In another directory, with another umask, time zone and home directory."""
    clone = tmp_path / "deeper" / "copy"
    call("git", "clone", "--quiet", str(ROOT), str(clone))
    if call("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        pytest.skip("the checkout has uncommitted changes")
    environment = {
        **os.environ, "HOME": str(tmp_path), "TZ": "Pacific/Kiritimati", "PYTHONPATH": str(clone),
    }  # fmt: skip
    output = tmp_path / "out"
    argv = [sys.executable, "-m", "deploy.packages.build", "--output", str(output)]
    call(*argv, "--python", PYTHON, cwd=clone, env=environment, umask=0o077)
    assert (output / "SHA256SUMS").read_text() == (package_directory / "SHA256SUMS").read_text()


def test_checksums_and_bills_of_materials(package_directory: Path) -> None:
    checksum_output = call("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=package_directory)
    assert checksum_output == ""
    names = {
        line.split()[1] for line in (package_directory / "SHA256SUMS").read_text().splitlines()
    }
    assert names == {path.name for path in package_directory.iterdir()} - {"SHA256SUMS"}
    (bill_of_materials,) = package_directory.glob("batchjob-server-*.cdx.json")
    content = json.loads(bill_of_materials.read_text())
    assert (content["bomFormat"], content["metadata"]["component"]["name"]) == (
        "CycloneDX", "batchjob-server",
    )  # fmt: skip
    urls = {each.get("purl", "").partition("@")[0] for each in content["components"]}
    assert {"pkg:pypi/sqlalchemy", "pkg:pypi/fastapi", "pkg:pypi/pyyaml"} <= urls
