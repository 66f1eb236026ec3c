"""The Ansible role: its syntax, ansible-lint, and the files that it writes."""

import contextlib
import grp
import os
import pwd
import re
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from batchjob_exporter.options import parse_settings as exporter_settings
from batchjob_stats_db.main import main as poller
from batchjob_stats_db.poller.options import settings as poller_settings
from batchjob_stats_server.options import settings as server_settings
from tests.helpers.waiting import scaled

ANSIBLE = Path(__file__).parents[2] / "deploy/ansible"
PROGRAMS = Path(sys.executable).parent

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (PROGRAMS / "ansible-playbook").exists(), reason="not installed: ansible-core"
    ),
]

PLAY = """
- name: The role on this machine
  hosts: localhost
  gather_facts: false
  roles: [{role: batchjob}]
"""


def run_ansible(program, *arguments, home):
    environment = {
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8",
        "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"), "ANSIBLE_LOCAL_TEMP": f"{home}/local",
        "ANSIBLE_REMOTE_TEMP": f"{home}/remote", "NO_COLOR": "1",
    }  # fmt: skip
    return subprocess.run(
        [str(PROGRAMS / program), *map(str, arguments)], env=environment, cwd=ANSIBLE,
        capture_output=True, text=True, check=False, timeout=scaled(300),
    )  # fmt: skip


def example_variables():
    """The variables that the example inventory sets on the host of the services."""
    tree = yaml.safe_load((ANSIBLE / "inventory.yml").read_text())["all"]
    return {**tree["vars"], **tree["children"]["services"]["vars"]}


@pytest.fixture
def apply_role(tmp_path):
    """Runs the part of the role that writes files, in a directory of the test."""
    user = pwd.getpwuid(os.getuid())
    home = tmp_path / "home"
    home.mkdir()
    (home / "play.yml").write_text(PLAY)
    default_variables = {
        "batchjob_etc": str(tmp_path / "etc"),
        "batchjob_unit_options": str(tmp_path),
        "batchjob_drop_ins": str(tmp_path),
        "batchjob_programs": str(PROGRAMS),
        "batchjob_owner": user.pw_name,
        "batchjob_group": grp.getgrgid(os.getgid()).gr_name,
        "ansible_python_interpreter": sys.executable,
    }

    def run(**variables):
        (home / "given.yml").write_text(yaml.safe_dump(default_variables | variables))
        arguments = ["-i", "localhost,", "-c", "local", "-e", f"@{home}/given.yml"]
        arguments += ["--tags", "batchjob_configuration", home / "play.yml"]
        return run_ansible("ansible-playbook", *arguments, home=home)

    return run


def test_playbook_syntax(tmp_path):
    done = run_ansible(
        "ansible-playbook", "--syntax-check", "-i", "inventory.yml", "site.yml", home=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not (PROGRAMS / "ansible-lint").exists(), reason="not installed: ansible-lint")
def test_ansible_lint_passes(tmp_path):
    done = run_ansible("ansible-lint", "--offline", "--profile=production", ".", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_accept_written_configuration(apply_role, tmp_path):
    done = apply_role(batchjob_services=True, **example_variables())
    assert done.returncode == 0, done.stdout + done.stderr
    etc = tmp_path / "etc"
    exporter_settings([f"--config.file={etc}/exporter.yml"])
    assert [each.name for each in poller_settings({}, f"{etc}/stats_db.yml").clusters] == ["alpha"]
    assert server_settings({}, f"{etc}/server.yml").auth.admin == ("root",)
    assert (tmp_path / "batchjob_exporter").read_text() == (
        f'OPTIONS="--config.file={etc}/exporter.yml"\n'
    )
    modes = {each.name: oct(stat.S_IMODE(each.stat().st_mode)) for each in etc.iterdir()}
    assert modes == {
        "exporter.yml": "0o644", "stats_db.yml": "0o640", "server.yml": "0o640",
        "grafana.secret": "0o640",
    }  # fmt: skip
    second_run = apply_role(batchjob_services=True, **example_variables())
    assert re.search(r"\bchanged=0\b", second_run.stdout), second_run.stdout


def test_string_false_disables_a_part(apply_role, tmp_path):
    """As passed by the command line option -e batchjob_exporter=false."""
    done = apply_role(
        batchjob_exporter="false", batchjob_exporter_config={"web.listen-address": ":1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "etc/exporter.yml").exists()


def test_helper_has_the_rights_for_what_it_gives_alone(apply_role, tmp_path):
    done = apply_role(batchjob_helper=True, batchjob_helper_gives=["devices", "process-io"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "batchjob_helper.service.d/rights.conf").read_text().splitlines() == [
        "[Service]",
        'Environment="HELPER_OPTIONS=--give devices process-io"',
        "CapabilityBoundingSet=",
        "CapabilityBoundingSet=CAP_SYS_ADMIN CAP_BPF CAP_PERFMON",
    ]
    refused = apply_role(batchjob_helper=True, batchjob_helper_gives=["everything"])
    assert "batchjob_helper_gives" in refused.stdout + refused.stderr


def test_secret_is_not_printed(apply_role):
    done = apply_role(batchjob_services=True, batchjob_secrets={"a.secret": "correct horse"})
    assert done.returncode == 0, done.stdout
    assert "correct horse" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"batchjob_exporter_config": {"web.listen-adress": ":1"}}, "did you mean web.listen-addr"),
        ({"batchjob_services": "perhaps"}, "batchjob_services"),
        ({"batchjob_secrets": ["a"]}, "batchjob_secrets"),
    ],
)
def test_invalid_variables_are_rejected_before_writing(apply_role, tmp_path, variables, message):
    done = apply_role(**variables)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert not (tmp_path / "etc/exporter.yml").exists()


def test_role_names_existing_packages_and_units():
    from deploy.packages.contents import PACKAGES

    role = yaml.safe_load((ANSIBLE / "roles/batchjob/vars/main.yml").read_text())
    for package in PACKAGES:
        assert f"'{package.name}'" in role["batchjob_names"]
        for unit in package.enabled():
            assert f"'{unit.removesuffix('.service')}'" in role["batchjob_units"]


def test_role_recognizes_request_for_migration(tmp_path, capsys):
    role = yaml.safe_load((ANSIBLE / "roles/batchjob/vars/main.yml").read_text())
    database = tmp_path / "jobs.db"
    url = f"--db.url=sqlite:///{database}"

    def check_error():
        assert poller([url, "check"]) == 2
        return capsys.readouterr().err

    assert role["batchjob_remedy"] in check_error()  # there is no database yet
    assert poller([url, "migrate"]) == 0
    assert "->" in capsys.readouterr().out
    for revision, migration_helps in (("0000", True), ("9999", False)):
        with contextlib.closing(sqlite3.connect(database)) as db, db:
            db.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        assert (role["batchjob_remedy"] in check_error()) == migration_helps
