"""A maintainer releases a version by following docs/release.md, and a site installs it from there.

Only with --long: it takes minutes.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import booted, clean_debian
from tests.e2e.reader import NOTHING, SHELL, Reader, text
from tests.helpers.processes import call, free_ports, served

pytestmark = pytest.mark.e2e

PAGE = "docs/release.md"
VERSION = "9.8.7"
PROGRAMS = ("git", "gpg", "dpkg-scanpackages", "apt-ftparchive")


class Maintainer(NamedTuple):
    """Somebody with a clone in `home/batchjob`, and a key."""

    home: Path
    environment: Mapping[str, str]

    def type_block(self, begin: str, folder: str, changes: Mapping[str, str] = NOTHING) -> str:
        block = f"VERSION={VERSION}\ncd {self.home / folder}\n{text(PAGE, begin, changes)}"
        return call(*SHELL, block, env=dict(self.environment), timeout=1800.0)

    def run(self, *argv: str) -> str:
        return call(*argv, env=dict(self.environment), cwd=self.home)


@pytest.fixture(scope="module")
def maintainer(request: pytest.FixtureRequest) -> Iterator[Maintainer]:
    """One who has built a version."""
    if not request.config.getoption("--long"):
        pytest.skip("only with --long: minutes of building and installing")
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(absent)}")
    home = Path(tempfile.mkdtemp(prefix="bj-release-", dir="/tmp"))  # gpg-agent's socket is in it
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home),
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    one = Maintainer(home, environment)
    clean_debian.copy_checkout(home / "batchjob")
    key = ("--batch", "--passphrase", "", "--quick-generate-key", "Release <release@example.org>")
    one.run("gpg", *key, "rsa3072", "sign", "never")
    for name, value in (("user.name", "Release"), ("user.email", "release@example.org")):
        one.run("git", "config", "--global", name, value)
    one.run("git", "-C", "batchjob", "init", "--quiet", "--initial-branch=main")
    one.run("git", "-C", "batchjob", "add", "--all")
    one.run("git", "-C", "batchjob", "commit", "--quiet", "--message", "A checkout")
    one.type_block("VERSION=", "batchjob", {"VERSION=1.0.0": f"VERSION={VERSION}"})
    one.type_block("git clone", "batchjob")
    yield one
    one.run("gpgconf", "--kill", "all")
    shutil.rmtree(home)


def test_version_is_set_wherever_it_stands(maintainer: Maintainer) -> None:
    release = maintainer.home / "release"
    for name in ("batchjob/__init__.py", "CITATION.cff", "deploy/kubernetes/Chart.yaml"):
        assert VERSION in (release / name).read_text()
    assert f"## {VERSION}, 20" in (release / "CHANGELOG.md").read_text()
    maintainer.run("git", "-C", "release", "verify-tag", f"v{VERSION}")


def test_pip_installs_it_from_an_index(maintainer: Maintainer, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    index = tmp_path / "index"
    index.mkdir()
    argv = [sys.executable, "-m", "pypiserver", "run", "--port", str(port), "--interface",
            "127.0.0.1", "--passwords", ".", "--authenticate", ".", str(index)]  # fmt: skip
    url = f"http://127.0.0.1:{port}/"
    with served(argv, "/", port, tmp_path / "log"):
        upload = f"twine upload --repository-url {url} --username x --password x"
        maintainer.type_block("twine upload", "release", {"twine upload": upload})
        call(sys.executable, "-m", "venv", str(tmp_path / "venv"))
        pip = (str(tmp_path / "venv/bin/pip"), "install", "--quiet", "--no-deps")
        call(*pip, "--index-url", f"{url}simple/", f"batchjob-monitoring=={VERSION}")
    shown = call(str(tmp_path / "venv/bin/pip"), "show", "batchjob-monitoring")
    assert f"Version: {VERSION}\n" in shown


def test_apt_installs_it_from_a_repository(maintainer: Maintainer, tmp_path: Path) -> None:
    maintainer.type_block("mkdir -p apt", "release")
    root = tmp_path / "root"
    clean_debian.make(root, clean_debian.python_package())
    shutil.copytree(maintainer.home / "release/apt", root / "root/apt")
    (root / "root/batchjob.asc").write_text(maintainer.run("gpg", "--armor", "--export"))
    (root / "etc/apt/keyrings").mkdir(exist_ok=True)
    with booted.machine(root) as machine:
        site = "https://packages.example.org/apt"
        Reader(machine).run_block(PAGE, "install -m 644", {site: "file:/root/apt"})
        assert VERSION in machine.run("batchjob_exporter", "--version")
    shutil.rmtree(root, ignore_errors=True)


def test_a_second_build_has_the_same_bytes(maintainer: Maintainer) -> None:
    again = maintainer.home / "again"
    maintainer.run("git", "clone", "--quiet", "--branch", f"v{VERSION}", "batchjob", str(again))
    python = str(maintainer.home / "release/build-env/bin/python")
    call(python, "-m", "deploy.packages.build", "--output", "dist", cwd=again,
         env=dict(maintainer.environment), timeout=1800.0)  # fmt: skip
    sums = [maintainer.home / folder / "dist/SHA256SUMS" for folder in ("release", "again")]
    assert sums[0].read_bytes() == sums[1].read_bytes()
