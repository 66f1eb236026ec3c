"""The configuration that packages install is accepted as it is."""

from pathlib import Path

import yaml

from batchjob_stats_db.options import settings as poller_settings
from batchjob_stats_server.options import settings as server_settings
from deploy.packages.contents import PACKAGES, ROOT

CONFIG = ROOT / "deploy/config"


def test_the_pollers():
    chosen = poller_settings({}, str(CONFIG / "stats_db.yml"))
    assert chosen.db.url == "sqlite:////var/lib/batchjob/jobs.db"


def test_the_servers():
    chosen = server_settings({}, str(CONFIG / "server.yml"))
    assert chosen.db.url == "sqlite:////var/lib/batchjob/jobs.db"


def test_what_is_commented_out_is_accepted_too(tmp_path):
    for name, read in (("stats_db.yml", poller_settings), ("server.yml", server_settings)):
        lines = (CONFIG / name).read_text().splitlines()
        text = "\n".join(line.removeprefix("# ") if "{" in line else line for line in lines)
        assert yaml.safe_load(text).keys() > yaml.safe_load((CONFIG / name).read_text()).keys()
        (tmp_path / name).write_text(text)
        read({}, str(tmp_path / name))


def test_units_and_files_are_there():
    for package in PACKAGES:
        for unit in package.units:
            text = Path(ROOT, "deploy/systemd", unit).read_text()
            assert f"ExecStart=/opt/batchjob/bin/{unit.removesuffix('.service')}" in text
        for source in package.configuration.values():
            assert (CONFIG / source).is_file()


def test_containers_install_extras_that_exist():
    extras = (ROOT / "pyproject.toml").read_text()
    for path in (ROOT / "deploy/containers").glob("*.Containerfile"):
        extra = path.read_text().partition("/source[")[2].partition("]")[0]
        assert f"\n{extra} = [" in extras
