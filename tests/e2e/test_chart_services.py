"""Poller and server of the chart as processes: their files and users, nothing else to write to."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.victoriametrics import responds_with_200
from tests.helpers.processes import daemon, free_ports, run, succeeds
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "HOME": "/nonexistent"}
VALUES = """
statsDb: {enabled: true, sources: {jsonl: {path: /var/lib/batchjob/jobs.jsonl}}}
statsServer: {enabled: true}
"""


@pytest.fixture
def rendered(tmp_path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The chart's resources, by kind and name."""
    if absent := [tool for tool in ("helm", "unshare", "setpriv") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(absent)}")
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    (tmp_path / "values.yaml").write_text(VALUES)
    argv = ["helm", "template", "bj", str(REPOSITORY / "deploy/kubernetes")]
    argv += ["--values", str(tmp_path / "values.yaml")]
    done = run(argv, check=True)
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


class Pod:
    """A Deployment's pod, its volume at `data`."""

    def __init__(self, rendered: dict[tuple[str, str], Any], name: str, folder: Path) -> None:
        self.spec = rendered["Deployment", name]["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.data = folder / "data"
        self.config = folder / name
        self.config.mkdir()
        for file, text in rendered["ConfigMap", name]["data"].items():
            (self.config / file).write_text(text.replace("/var/lib/batchjob", str(self.data)))

    def argv(self, container: dict[str, Any], *flags: str) -> list[str]:
        """As Kubernetes starts it: the pod's user, no capability, all but the volume read-only."""
        program, config, *command = container["command"]
        config = config.replace("/etc/batchjob/config", str(self.config))
        user = self.spec["securityContext"]["runAsUser"]
        inside = [
            "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            "--bounding-set=-all", sys.executable, "-m", f"{program}.main", config, *command,
            *flags,
        ]  # fmt: skip
        writable = f"mount --bind {self.data} {self.data} && mount -o remount,bind,ro /"
        script = f"{writable} && exec {shlex.join(inside)}"
        return ["unshare", "--mount", "--propagation=private", "sh", "-ec", script]

    @contextlib.contextmanager
    def started(self, log: Path) -> Iterator[str]:
        """The URL where its pages are."""
        (port,) = free_ports(1)
        argv = self.argv(self.container, f"--web.listen-address=127.0.0.1:{port}")
        with daemon(argv, log, ENVIRONMENT):
            yield f"http://127.0.0.1:{port}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the pods' user may enter; other runs of pytest close the one above `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="batchjob-pods-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_poller_and_server_write_only_to_their_volume(rendered: Any, folder: Path) -> None:
    poller = Pod(rendered, "bj-stats-db", folder)
    server = Pod(rendered, "bj-stats-server", folder)
    user = poller.spec["securityContext"]["runAsUser"]
    poller.data.mkdir()
    shutil.chown(poller.data, user, user)
    (poller.data / "jobs.jsonl").touch()
    if not succeeds(["setpriv", f"--reuid={user}", sys.executable, "-c", "import uvicorn"]):
        pytest.skip("the Python of these tests is not for all users")
    (migrate,) = poller.spec["initContainers"]
    done = subprocess.run(
        poller.argv(migrate), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    log = folder / "log"
    with poller.started(log) as polls, server.started(log) as serves:
        for url, pod in ((polls, poller), (serves, server)):
            for probe in ("livenessProbe", "readinessProbe"):
                page = url + pod.container[probe]["httpGet"]["path"]
                until(lambda page=page: responds_with_200(page), f"{page}: {log.read_text()}", 30)
    assert (poller.data / "jobs.db").stat().st_uid == user
