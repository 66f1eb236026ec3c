"""Packages are built, installed into a clean Debian, and what they bring is started and asked."""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchjob import __version__
from tests.e2e.exporter import parse
from tests.e2e.processes import call, free_ports, served

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
TOOLS = ("mmdebstrap", "dpkg-deb", "rpmbuild", "unshare", "setpriv")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all packages."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    if sys.version_info[:2] != _version_of(PYTHON):
        pytest.skip(f"{PYTHON} has another minor version than these tests")
    output = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "deploy.packages.build", "--output", str(output)]
    call(*argv, "--python", PYTHON, cwd=ROOT)
    return output


def _version_of(python: str) -> tuple[int, ...]:
    program = "import sys; print('%d %d' % sys.version_info[:2])"
    return tuple(map(int, call(python, "-c", program).split()))


@pytest.fixture(scope="module")
def debian(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clean Debian with the packages installed."""
    root = tmp_path_factory.mktemp("debian") / "root"
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
    assert codename
    version = ".".join(map(str, _version_of(PYTHON)))
    call(
        "mmdebstrap", "--variant=minbase", f"--include=python{version}", codename[1],
        str(root),
    )  # fmt: skip
    for package in ("exporter", "server"):
        (deb,) = built.glob(f"batchjob-{package}_*.deb")
        shutil.copy(deb, root / "tmp")
        inside(root, "dpkg", "-i", f"/tmp/{deb.name}")
    yield root
    shutil.rmtree(root, ignore_errors=True)


def entered(root: Path, *command: str, user: str = "") -> list[str]:
    """The command line that runs `command` in the root, with /proc and /sys of this machine."""
    prefix = ["setpriv", f"--reuid={user}", "--clear-groups", "--no-new-privs"] if user else []
    script = f'mount --rbind /proc "{root}/proc" && mount --rbind /sys "{root}/sys" && exec "$@"'
    return [
        "unshare", "--mount", "--propagation=private", "sh", "-c", script, "inside",
        "chroot", str(root), *prefix, *command,
    ]  # fmt: skip


def inside(root: Path, *command: str, user: str = "") -> str:
    return call(*entered(root, *command, user=user))


def test_the_units_command_is_scraped(debian: Path, tmp_path: Path) -> None:
    unit = (debian / "usr/lib/systemd/system/batchjob_exporter.service").read_text()
    (command,) = re.findall(r"^ExecStart=(\S+) \$OPTIONS$", unit, re.M)
    (port,) = free_ports(1)
    argv = entered(debian, command, f"--web.listen-address=127.0.0.1:{port}", user="nobody")
    with served(argv, "/metrics", port, tmp_path / "log") as text:
        scrape = parse(text, time.time())
    assert scrape.value("batchjob_exporter_build_info", version=__version__) == 1
    assert scrape.value("batchjob_scrape_collector_success", collector="jobs") == 1


def test_poller_and_server_start(debian: Path, tmp_path: Path) -> None:
    assert "batchjob" in inside(debian, "getent", "passwd", "batchjob")
    inside(debian, "install", "-d", "-o", "batchjob", "/var/lib/batchjob")
    config = "--config.file=/etc/batchjob/stats_db.yml"
    inside(debian, "batchjob_stats_db", config, "migrate", user="batchjob")
    (port,) = free_ports(1)
    argv = entered(
        debian, "/opt/batchjob/bin/batchjob_stats_server", "--config.file=/etc/batchjob/server.yml",
        f"--web.listen-address=127.0.0.1:{port}", user="batchjob",
    )  # fmt: skip
    with served(argv, "/-/ready", port, tmp_path / "log") as text:
        assert text


def test_the_command_batchjob_takes_what_is_installed(debian: Path) -> None:
    assert inside(debian, "batchjob", "--version").split() == ["batchjob", __version__]
    inside(debian, "mv", "/opt/batchjob/server", "/opt/batchjob/elsewhere")
    try:
        assert inside(debian, "batchjob", "--version").split() == ["batchjob", __version__]
    finally:
        inside(debian, "mv", "/opt/batchjob/elsewhere", "/opt/batchjob/server")


def test_configuration_is_kept_and_the_rest_goes(debian: Path) -> None:
    listed = (debian / "var/lib/dpkg/info/batchjob-server.conffiles").read_text().split()
    assert listed == ["/etc/batchjob/stats_db.yml", "/etc/batchjob/server.yml"]
    inside(debian, "dpkg", "--remove", "batchjob-server")
    assert (debian / "etc/batchjob/server.yml").exists()
    assert not (debian / "opt/batchjob/server").exists()
    assert (debian / "opt/batchjob/bin/batchjob_exporter").exists()


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
