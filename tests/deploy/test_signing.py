"""The commands of docs/packages.md sign releases and detect changed files."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.waiting import scaled

ROOT = Path(__file__).parents[2]
PACKAGE = "batchjob-exporter_1_amd64.deb"


def documented_commands(program: str) -> list[list[str]]:
    """The program's command lines in the page, in order."""
    page = (ROOT / "docs/packages.md").read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"^{program} .*$", page, re.M)]


class Release(NamedTuple):
    """Built files in `dist`, and a home directory for keys."""

    home: Path

    def run(self, *command: str, folder: str = ".") -> int:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=self.home / folder, env=environment, check=False, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=scaled(60),
        )  # fmt: skip
        return done.returncode

    def append_to(self, name: str) -> None:
        path = self.home / "dist" / name
        path.write_bytes(path.read_bytes() + b"# other\n")


@pytest.fixture
def release() -> Iterator[Release]:
    home = Path(tempfile.mkdtemp(prefix="bj-sign-", dir="/tmp"))  # gpg-agent's socket is below it
    release = Release(home)
    (home / "dist").mkdir()
    (home / "dist" / PACKAGE).write_text("a package\n")
    sums = subprocess.check_output(["sha256sum", PACKAGE], cwd=home / "dist")
    (home / "dist/SHA256SUMS").write_bytes(sums)
    yield release
    if shutil.which("gpgconf"):
        release.run("gpgconf", "--kill", "all")
    shutil.rmtree(home)


def create_minisign_key(release: Release) -> None:
    (release.home / ".minisign").mkdir()
    assert release.run("minisign", "-G", "-W", "-p", "dist/batchjob.pub") == 0


def create_gpg_key(release: Release) -> None:
    (release.home / ".gnupg").mkdir(mode=0o700)
    assert (
        release.run("gpg", "--batch", "--passphrase", "", "--quick-gen-key", "us@example.org") == 0
    )


@pytest.mark.parametrize(
    ("program", "create_key"),
    [("minisign", create_minisign_key), ("gpg", create_gpg_key), ("cosign", None)],
)
def test_documented_commands_sign_and_verify(release, program, create_key):
    sign, verify = documented_commands(program)
    if create_key is None:
        pytest.skip("cosign is no Debian package, and gets its key from a service")
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    create_key(release)
    assert release.run(*sign) == 0
    assert release.run(*verify, folder="dist") == 0
    release.append_to("SHA256SUMS")
    assert release.run(*verify, folder="dist") != 0


def test_documented_checksum_command_detects_changed_file(release):
    (check,) = documented_commands("sha256sum")
    assert release.run(*check, folder="dist") == 0
    release.append_to(PACKAGE)
    assert release.run(*check, folder="dist") != 0


@pytest.mark.parametrize("recipe", sorted(ROOT.glob("deploy/containers/*.Containerfile")), ids=str)
def test_image_is_built_from_base_argument(recipe):
    lines = recipe.read_text().splitlines()
    base_images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert base_images
    assert set(base_images) == {"$BASE"}
    assert any(line.startswith("ARG BASE=") for line in lines)


def test_documentation_pins_base_image_by_digest():
    page = (ROOT / "docs/packages.md").read_text()
    assert "--build-arg BASE=python@sha256:" in page
    assert "{{.Digest}}" in page
