"""The configuration that packages install is accepted unchanged."""

import re

import yaml

from batchjob_exporter.options import parse_settings as exporter_settings
from batchjob_stats_db.poller.options import settings as poller_settings
from batchjob_stats_server.options import settings as server_settings
from deploy.packages.contents import PACKAGES, ROOT, SERVER

CONFIG = ROOT / "deploy/config"
SYSTEMD = ROOT / "deploy/systemd"


def test_poller_configuration():
    settings = poller_settings({}, str(CONFIG / "stats_db.yml"))
    assert settings.db.url == "sqlite:////var/lib/batchjob/jobs.db"


def test_server_configuration():
    settings = server_settings({}, str(CONFIG / "server.yml"))
    assert settings.db.url == "sqlite:////var/lib/batchjob/jobs.db"


def test_commented_out_options_are_accepted(tmp_path):
    for name, read in (("stats_db.yml", poller_settings), ("server.yml", server_settings)):
        lines = (CONFIG / name).read_text().splitlines()
        text = "\n".join(line.removeprefix("# ") if "{" in line else line for line in lines)
        assert yaml.safe_load(text).keys() > yaml.safe_load((CONFIG / name).read_text()).keys()
        (tmp_path / name).write_text(text)
        read({}, str(tmp_path / name))


def test_cluster_exporter_configuration():
    settings = exporter_settings([f"--config.file={CONFIG}/cluster.yml"])
    assert settings.web.listen_address == (":10913",)
    assert [entry.name for entry, _ in settings.collectors] == ["cluster"]


def exec_start_lines(package):
    """Pairs of a unit and a command line that it starts."""
    for folder, units in (("systemd", package.units), ("systemd/user", package.user_units)):
        for unit in units:
            text = (ROOT / "deploy" / folder / unit).read_text()
            for command in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE):
                yield unit, command


def test_units_start_programs_of_the_packages():
    commands = {f"/opt/batchjob/bin/{name}" for each in PACKAGES for name in each.commands}
    for package in PACKAGES:
        started = dict(exec_start_lines(package))
        assert started.keys() == {
            unit for unit in (*package.units, *package.user_units) if unit.endswith(".service")
        }
        for command in started.values():
            assert command.split()[0] in commands


def test_units_read_configuration_files_of_the_packages():
    configuration_files = {f"/etc/{name}" for package in PACKAGES for name in package.configuration}
    for package in PACKAGES:
        for unit, command in exec_start_lines(package):
            for path in re.findall(r"--config.file=(\S+)", command):
                assert path in configuration_files, unit


def test_files_of_packages_exist():
    for package in PACKAGES:
        for source in package.configuration.values():
            assert (CONFIG / source).is_file()
        for source in package.scripts.values():
            assert (ROOT / "deploy" / source).is_file()
        for source in package.examples.values():
            assert (ROOT / source).exists()


def test_state_directory_modes_match_the_package():
    """systemd creates StateDirectory= with the mode that the package uses."""
    modes = {path: (mode, user) for path, mode, user in SERVER.directories}
    mode, user = modes["/var/lib/batchjob"]
    for unit in ("batchjob_stats_db", "batchjob_stats_server", "batchjob_backup"):
        text = (ROOT / f"deploy/systemd/{unit}.service").read_text()
        assert f"StateDirectoryMode={mode}" in text
        assert f"User={user}" in text


SANDBOX = {
    "NoNewPrivileges=yes", "ProtectHome=yes", "ProtectSystem=strict", "PrivateMounts=yes",
    "RemoveIPC=yes", "SystemCallFilter=@system-service", "UMask=0077", "PrivateTmp=yes",
}  # fmt: skip
# The exporter reads other users' processes and hardware.
SERVICES = SANDBOX | {
    "ProtectProc=invisible", "ProcSubset=pid", "SystemCallFilter=~@privileged @resources",
}  # fmt: skip
UNITS = {
    "batchjob_exporter": SANDBOX | {"LimitNOFILE=65536", "WatchdogSec=60"},
    "batchjob_helper": SANDBOX,
    "batchjob_cluster": SERVICES | {"LimitNOFILE=65536", "WatchdogSec=60"},
    "batchjob_stats_db": SERVICES | {"WatchdogSec=120"},
    "batchjob_stats_server": SERVICES | {"LimitNOFILE=65536", "WatchdogSec=60"},
    "batchjob_backup": SERVICES,
}


def test_units_are_sandboxed():
    found = {path.stem: set(path.read_text().split("\n")) for path in SYSTEMD.glob("*.service")}
    assert {unit: UNITS[unit] - lines for unit, lines in found.items() if UNITS[unit] - lines} == {}
    assert found.keys() == UNITS.keys()
