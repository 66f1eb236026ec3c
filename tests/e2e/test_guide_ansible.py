"""The Ansible role, docs/victoriametrics.md and the user service of docs/up.md on a booted Debian.

Ansible comes over ssh, whose server is started by the client's side of the connection.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e import booted, clean_debian
from tests.e2e.reader import Reader, text
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

ANSIBLE = clean_debian.ROOT / "deploy/ansible"
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
DEBIAN = (
    "victoria-metrics", "openssh-server", "python3-apt", "curl", "iproute2", "libpam-systemd",
    "dbus-user-session", "polkitd",
)  # fmt: skip
USER = "alice"
# The agent looks for files of nodes once a minute and scrapes twice; VictoriaMetrics answers from
# samples that are half a minute old.
PATIENCE_SECONDS = 300.0


class Host(NamedTuple):
    """A machine, and who changes it over ssh."""

    machine: booted.Machine
    home: Path
    """Ansible's, with its inventory and key."""

    def play(self, *flags: str) -> str:
        """What the page's command says, with further flags; AssertionError where it fails."""
        (command,) = [
            line
            for line in text("docs/ansible.md", "cd deploy/ansible").splitlines()
            if line.endswith("inventory.yml site.yml")
        ]
        program, *arguments = command.replace("inventory.yml", f"{self.home}/inventory.yml").split()
        # The scheduler, whose nodes the cluster's collector asks for, is not on this machine.
        argv = [
            str(PLAYBOOK.with_name(program)),
            *arguments,
            *flags,
            "-e",
            "batchjob_cluster=false",
        ]
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8",
            "NO_COLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no", "ANSIBLE_PIPELINING": "1",
        }  # fmt: skip
        return call(*argv, cwd=ANSIBLE, env=environment)

    def answer(self, url: str) -> str:
        """Of a server inside, once it is there."""
        argv = ("curl", "--silent", "--show-error", "--fail", url)
        until(lambda: self.machine.succeeds(*argv), f"an answer of {url}", PATIENCE_SECONDS, 0.5)
        return self.machine.run(*argv)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Iterator[Host]:
    if not long_form:
        pytest.skip("only with --long: minutes of installing")
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    if not PLAYBOOK.exists() or shutil.which("ssh") is None:
        pytest.skip("not installed: ansible-core or ssh")
    folder = tmp_path_factory.mktemp("debian")
    clean_debian.build(folder / "dist", "deb")
    root = folder / "root"
    clean_debian.make(root, clean_debian.python_package(), *DEBIAN)
    key = folder / "key"
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(f"{key}.pub", root / "root/.ssh/authorized_keys")
    with booted.machine(root) as machine:
        machine.run("mkdir", "-p", "/run/sshd")
        (folder / "inventory.yml").write_text(
            yaml.safe_dump(inventory(machine, key, sorted((folder / "dist").glob("*.deb"))))
        )
        yield Host(machine, folder)
    shutil.rmtree(folder, ignore_errors=True)


def inventory(machine: booted.Machine, key: Path, packages: list[Path]) -> dict[str, Any]:
    """The example's variables for one host that is a node and has the services."""
    tree = yaml.safe_load((ANSIBLE / "inventory.yml").read_text())["all"]
    given = tree["vars"] | tree["children"]["services"]["vars"]
    given["batchjob_exporter_config"] = {"web.listen-address": "127.0.0.1:10910"}
    given["batchjob_stats_db_config"]["clusters"] = [
        {"name": "alpha", "sources": {"jsonl": {"path": "/var/lib/batchjob/jobs.jsonl"}}}
    ]
    given["batchjob_package_files"] = [str(path) for path in packages]
    server = " ".join(machine.command_inside("/usr/sbin/sshd", "-i"))
    connection = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(key),
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_common_args": f"-o ProxyCommand='{server}' -o StrictHostKeyChecking=no "
        "-o UserKnownHostsFile=/dev/null -o BatchMode=yes",
    }
    hosts = {"stats.example.org": connection}
    groups = {"nodes": {"hosts": hosts}, "services": {"hosts": hosts}}
    return {"all": {"vars": given, "children": groups}}


@pytest.fixture(scope="module")
def installed(host: Host) -> str:
    """What the first run said."""
    return host.play()


def test_role_installs_and_starts_services(host: Host, installed: str) -> None:
    assert "failed=0" in installed
    for unit in ("batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
                 "batchjob_backup.timer"):  # fmt: skip
        until(
            lambda unit=unit: host.machine.unit_property(unit, "ActiveState") == "active", unit, 60
        )
        assert host.machine.run("systemctl", "is-enabled", unit).strip() == "enabled"
    assert "batchjob_exporter_build_info" in host.answer("http://127.0.0.1:10910/metrics")
    host.answer("http://127.0.0.1:10912/-/ready")


def test_second_run_changes_nothing(host: Host, installed: str) -> None:
    assert re.search(r"\bchanged=0\b", host.play()), installed
    assert re.search(r"\bchanged=0\b", host.play("--check", "--diff"))


def test_victoria_metrics_with_agent_and_rules(host: Host, installed: str) -> None:
    reader = Reader(host.machine)
    reader.run_block("docs/victoriametrics.md", "cd /usr/share/batchjob")
    host.answer("http://127.0.0.1:8428/health")
    nodes = host.machine.root / "etc/prometheus/batchjob"
    nodes.mkdir(parents=True, exist_ok=True)
    (nodes / "nodes-alpha.json").write_text(
        json.dumps([{"targets": ["127.0.0.1"], "labels": {"cluster": "alpha"}}])
    )
    until(
        lambda: "batchjob_exporter" in _jobs_up(host),
        "the exporter is scraped",
        PATIENCE_SECONDS,
        1,
    )
    for unit in ("victoria-metrics", "vmagent", "vmalert"):
        assert host.machine.unit_property(unit, "ActiveState") == "active"
    listening = re.findall(r"\S+:8428\b", host.machine.run("ss", "-tlnH"))
    assert listening == ["127.0.0.1:8428"]
    until(
        lambda: _sample(host, "vmalert_iteration_total", "[1-9]"), "rules run", PATIENCE_SECONDS, 1
    )
    assert not _sample(host, r"vmalert_\w+_rules_error", "1")


def _sample(host: Host, name: str, value: str) -> str:
    """The first line of vmalert's own metrics that is like this."""
    own = host.answer("http://127.0.0.1:8880/metrics")
    found = re.search(rf"^{name}\{{.*\}} {value}", own, re.MULTILINE)
    return found[0] if found else ""


def _jobs_up(host: Host) -> set[str]:
    return {each["job"] for each in _series(host, "up == 1")}


def _series(host: Host, query: str) -> list[dict[str, str]]:
    """Labels of what VictoriaMetrics has."""
    told = host.machine.run(
        "curl", "--silent", "--get", "--data-urlencode", f"query={query}",
        "http://127.0.0.1:8428/api/v1/query",
    )  # fmt: skip
    return [each["metric"] for each in json.loads(told)["data"]["result"]]


def test_user_service(host: Host, installed: str) -> None:
    machine = host.machine
    machine.run("useradd", "--create-home", "--shell=/bin/bash", USER)
    block = text("docs/up.md", "systemctl --user enable")
    environment = machine.root / f"home/{USER}/.config/batchjob/up.env"
    environment.parent.mkdir(parents=True)
    environment.write_text('OPTIONS="--listen-address=127.0.0.1:8012"\n')
    machine.run("chown", "-R", f"{USER}:", f"/home/{USER}/.config")
    # A log-in: PAM starts the user's own systemd.
    machine.run("su", "--login", USER, "--command", f"set -e\n{block}")
    host.answer("http://127.0.0.1:8012/-/ready")
    assert machine.run("loginctl", "show-user", USER, "--property=Linger").strip() == "Linger=yes"
    shown = subprocess.run(
        machine.command_inside(
            "su", "--login", USER, "--command", "journalctl --user -u batchjob_up"
        ),
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "?token=bj_" in shown
