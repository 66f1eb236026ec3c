"""The images of deploy/containers are built, and their services respond.

Their base is a Debian with the same Python, made here under the name that they give it: no registry
of images is asked. pip finds its wheels in a directory, so the build needs no network either.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchjob import __version__
from tests.e2e.exporter import parse
from tests.helpers.processes import call, free_ports, served, succeeds

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "mmdebstrap")
BASE = "localhost/python:3.13-slim"
PYTHON, SUITE = "3.13", "trixie"  # what the base is, and the Debian that has it
UID = 10910  # of the server's image


class Store(NamedTuple):
    """Where buildah keeps images and containers of ours alone."""

    directory: Path
    driver: str

    def buildah(self, command: str, *argv: str) -> list[str]:
        """The command line; it asks for neither a runtime nor namespaces."""
        places = ["--root", f"{self.directory}/images", "--runroot", f"{self.directory}/run"]
        isolation = ["--isolation=chroot"] if command in ("build", "from", "run") else []
        return ["buildah", *places, "--storage-driver", self.driver, command, *isolation, *argv]

    @contextlib.contextmanager
    def container(self, image: str) -> Iterator[str]:
        """The name of a container made from the image."""
        name = call(*self.buildah("from", "--pull-never", image)).strip()
        try:
            yield name
        finally:
            call(*self.buildah("rm", name))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """With a base in it."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("only root builds images in a chroot")
    directory = tmp_path_factory.mktemp("containers")
    try:
        # Some sandboxes have no overlayfs: plain copies do it as well, and take twice as long.
        drivers = (Store(directory / driver, driver) for driver in ("overlay", "vfs"))
        found = next((each for each in drivers if succeeds(each.buildah("from", "scratch"))), None)
        if found is None:
            pytest.skip("buildah makes no container here")
        _base(found)
        yield found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _base(store: Store) -> None:
    tar = store.directory / "base.tar"
    call(
        "mmdebstrap", "--variant=minbase", "--include=python3-venv,python-is-python3",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
        SUITE, str(tar),
    )  # fmt: skip
    with store.container("scratch") as name:
        call(*store.buildah("add", "--quiet", name, str(tar), "/"))
        tar.unlink()
        probe = store.buildah("run", name, "--", "python", "--version")
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"buildah runs nothing here: {done.stderr.strip()[-200:]}")
        assert done.stdout.startswith(f"Python {PYTHON}.")
        call(*store.buildah("commit", "--quiet", name, BASE))


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a build sees beside its context: wheels for the base's Python, and word of them."""
    directory = tmp_path_factory.mktemp("wheels")
    call(
        sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
        f"--python-version={PYTHON}",
        f"--dest={directory / 'all'}", "--no-deps", "--require-hashes",
        "-r", str(ROOT / "deploy/locked/packaged.txt"),
        "-r", str(ROOT / "deploy/locked/backend.txt"),
    )  # fmt: skip
    settings = directory / "pip.conf"
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return [f"--volume={directory / 'all'}:/wheels:ro", f"--volume={settings}:/etc/pip.conf:ro"]


def digest(store: Store, image: str) -> str:
    """As `skopeo inspect` says it of an image in a registry."""
    argv = ("--type=image", "--format={{.FromImageDigest}}", image)
    return call(*store.buildah("inspect", *argv)).strip()


def build_image(store: Store, volumes: list[str], image: str, *more: str) -> dict[str, Any]:
    """Build the image and return its configuration."""
    recipe = f"deploy/containers/{image}.Containerfile"
    argv = ("--quiet", "--pull-never", *volumes, *more, "-f", recipe, "-t", image, ".")
    call(*store.buildah("build", *argv), cwd=ROOT)
    told = json.loads(call(*store.buildah("inspect", "--type=image", image)))
    config: dict[str, Any] = told["OCIv1"]["config"]
    return config


def test_exporter_image_is_scraped(store: Store, volumes: list[str], tmp_path: Path) -> None:
    base = f"localhost/python@{digest(store, BASE)}"  # by digest, as docs/packages.md has it
    config = build_image(store, volumes, "exporter", f"--build-arg=BASE={base}")
    assert (config["User"], config["ExposedPorts"]) == ("65534:65534", {"10910/tcp": {}})
    (port,) = free_ports(1)
    command = [*config["Entrypoint"], f"--web.listen-address=127.0.0.1:{port}"]
    with store.container("exporter") as name:
        argv = store.buildah("run", name, "--", *command)
        with served(argv, "/metrics", port, tmp_path / "log") as text:
            scrape = parse(text, time.time())
        root = Path(call(*store.buildah("mount", name)).strip())
        assert (root / "opt/batchjob/exporter").is_dir()
        assert not (root / "source").exists()
    ((labels, _),) = scrape.series("batchjob_exporter_build_info")
    assert labels["version"] == __version__
    assert labels["python"].startswith(f"{PYTHON}.")
    assert scrape.value("batchjob_scrape_collector_success", collector="jobs") == 1


def test_server_image_starts(store: Store, volumes: list[str], tmp_path: Path) -> None:
    config = build_image(store, volumes, "server")
    assert list(config["Volumes"]) == ["/var/lib/batchjob"]
    etc = tmp_path / "etc"
    shutil.copytree(ROOT / "deploy/config", etc)
    (port,) = free_ports(1)
    with store.container("server") as name:
        # The data stay in the container's own volume: a directory mounted over it loses against it
        # every other time (buildah 1.28 mounts both, in any order).
        run = store.buildah("run", f"--volume={etc}:/etc/batchjob:ro", name, "--")
        call(*run, "batchjob_stats_db", "--config.file=/etc/batchjob/stats_db.yml", "migrate")
        assert call(*run, "stat", "--format=%u", "/var/lib/batchjob/jobs.db").strip() == str(UID)
        argv = [*run, *config["Cmd"], f"--web.listen-address=127.0.0.1:{port}"]
        with served(argv, "/-/ready", port, tmp_path / "log") as text:
            assert text
