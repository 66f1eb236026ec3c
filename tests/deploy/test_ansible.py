"""The Ansible role: its syntax, what ansible-lint says, and the files that it writes."""

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


def called(program, *arguments, home):
    environment = {
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8",
        "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"), "ANSIBLE_LOCAL_TEMP": f"{home}/local",
        "ANSIBLE_REMOTE_TEMP": f"{home}/remote", "NO_COLOR": "1",
    }  # fmt: skip
    return subprocess.run(
        [str(PROGRAMS / program), *map(str, arguments)], env=environment, cwd=ANSIBLE,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def examples():
    """What the example of an inventory sets on the host of services."""
    tree = yaml.safe_load((ANSIBLE / "inventory.yml").read_text())["all"]
    return {**tree["vars"], **tree["children"]["services"]["vars"]}


@pytest.fixture
def write(tmp_path):
    """Runs the part of the role that writes files, into a directory of the test."""
    user = pwd.getpwuid(os.getuid())
    home = tmp_path / "home"
    home.mkdir()
    (home / "play.yml").write_text(PLAY)
    places = {
        "batchjob_etc": str(tmp_path / "etc"),
        "batchjob_unit_options": str(tmp_path),
        "batchjob_programs": str(PROGRAMS),
        "batchjob_owner": user.pw_name,
        "batchjob_group": grp.getgrgid(os.getgid()).gr_name,
        "ansible_python_interpreter": sys.executable,
    }

    def run(**given):
        (home / "given.yml").write_text(yaml.safe_dump(places | given))
        arguments = ["-i", "localhost,", "-c", "local", "-e", f"@{home}/given.yml"]
        arguments += ["--tags", "batchjob_configuration", home / "play.yml"]
        return called("ansible-playbook", *arguments, home=home)

    return run


def test_its_syntax(tmp_path):
    done = called(
        "ansible-playbook", "--syntax-check", "-i", "inventory.yml", "site.yml", home=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not (PROGRAMS / "ansible-lint").exists(), reason="not installed: ansible-lint")
def test_ansible_lint_finds_nothing(tmp_path):
    done = called("ansible-lint", "--offline", "--profile=production", ".", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_our_programs_read_what_it_writes(write, tmp_path):
    done = write(batchjob_services=True, **examples())
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
    again = write(batchjob_services=True, **examples())
    assert re.search(r"\bchanged=0\b", again.stdout), again.stdout


def test_false_on_the_command_line_is_no(write, tmp_path):
    """Where it is a text: -e batchjob_exporter=false."""
    done = write(batchjob_exporter="false", batchjob_exporter_config={"web.listen-address": ":1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "etc/exporter.yml").exists()


def test_a_secret_is_not_shown(write):
    done = write(batchjob_services=True, batchjob_secrets={"a.secret": "correct horse"})
    assert done.returncode == 0, done.stdout
    assert "correct horse" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batchjob_exporter_config": {"web.listen-adress": ":1"}}, "did you mean web.listen-addr"),
        ({"batchjob_services": "perhaps"}, "batchjob_services"),
        ({"batchjob_secrets": ["a"]}, "batchjob_secrets"),
    ],
)
def test_what_is_wrong_is_not_written(write, tmp_path, given, words):
    done = write(**given)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert not (tmp_path / "etc/exporter.yml").exists()


def test_it_names_the_packages_and_units_that_there_are():
    from deploy.packages.contents import PACKAGES

    role = yaml.safe_load((ANSIBLE / "roles/batchjob/vars/main.yml").read_text())
    for package in PACKAGES:
        assert f"'{package.name}'" in role["batchjob_names"]
        for unit in package.enabled():
            assert f"'{unit.removesuffix('.service')}'" in role["batchjob_units"]


def test_it_migrates_where_the_program_says_so(tmp_path, capsys):
    role = yaml.safe_load((ANSIBLE / "roles/batchjob/vars/main.yml").read_text())
    database = tmp_path / "jobs.db"
    url = f"--db.url=sqlite:///{database}"

    def complaint():
        assert poller([url, "check"]) == 2
        return capsys.readouterr().err

    assert role["batchjob_remedy"] in complaint()  # there is none yet
    assert poller([url, "migrate"]) == 0
    assert "->" in capsys.readouterr().out
    for revision, helps in (("0000", True), ("9999", False)):
        with contextlib.closing(sqlite3.connect(database)) as db, db:
            db.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        assert (role["batchjob_remedy"] in complaint()) == helps
