"""The commands of docs/packages.md sign what was built, and find what was changed since."""

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

ROOT = Path(__file__).parents[2]
PACKAGE = "batchjob-exporter_1_amd64.deb"


def documented(program: str) -> list[list[str]]:
    """Its command lines in the page, in their order."""
    page = (ROOT / "docs/packages.md").read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"^{program} .*$", page, re.M)]


class Release(NamedTuple):
    """Built files in `dist`, and a home for keys."""

    home: Path

    def call(self, *command: str, where: str = ".") -> int:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=self.home / where, env=environment, check=False, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60,
        )  # fmt: skip
        return done.returncode

    def change(self, name: str) -> None:
        path = self.home / "dist" / name
        path.write_bytes(path.read_bytes() + b"# other\n")


@pytest.fixture
def release() -> Iterator[Release]:
    home = Path(tempfile.mkdtemp(prefix="bj-sign-", dir="/tmp"))  # gpg-agent's socket is below it
    made = Release(home)
    (home / "dist").mkdir()
    (home / "dist" / PACKAGE).write_text("a package\n")
    sums = subprocess.check_output(["sha256sum", PACKAGE], cwd=home / "dist")
    (home / "dist/SHA256SUMS").write_bytes(sums)
    yield made
    if shutil.which("gpgconf"):
        made.call("gpgconf", "--kill", "all")
    shutil.rmtree(home)


def key_of_minisign(release: Release) -> None:
    (release.home / ".minisign").mkdir()
    assert release.call("minisign", "-G", "-W", "-p", "dist/batchjob.pub") == 0


def key_of_gpg(release: Release) -> None:
    (release.home / ".gnupg").mkdir(mode=0o700)
    assert (
        release.call("gpg", "--batch", "--passphrase", "", "--quick-gen-key", "us@example.org") == 0
    )


@pytest.mark.parametrize(
    ("program", "make_key"), [("minisign", key_of_minisign), ("gpg", key_of_gpg), ("cosign", None)]
)
def test_the_documented_commands_sign_and_verify(release, program, make_key):
    sign, verify = documented(program)
    if make_key is None:
        pytest.skip("cosign is no Debian package, and asks a service for its key")
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    make_key(release)
    assert release.call(*sign) == 0
    assert release.call(*verify, where="dist") == 0
    release.change("SHA256SUMS")
    assert release.call(*verify, where="dist") != 0


def test_the_documented_sums_find_a_changed_file(release):
    (check,) = documented("sha256sum")
    assert release.call(*check, where="dist") == 0
    release.change(PACKAGE)
    assert release.call(*check, where="dist") != 0


@pytest.mark.parametrize("recipe", sorted(ROOT.glob("deploy/containers/*.Containerfile")), ids=str)
def test_images_stand_on_what_the_build_argument_names(recipe):
    lines = recipe.read_text().splitlines()
    froms = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert froms
    assert set(froms) == {"$BASE"}
    assert any(line.startswith("ARG BASE=") for line in lines)


def test_the_docs_name_the_base_by_digest():
    page = (ROOT / "docs/packages.md").read_text()
    assert "--build-arg BASE=python@sha256:" in page
    assert "{{.Digest}}" in page
