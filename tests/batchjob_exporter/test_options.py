"""Flags and file: precedence, and one clear line for whatever is wrong."""

import ipaddress

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.options import parse_settings
from collectors.collector import COLLECTORS

DEFAULTS = [entry.name for entry in COLLECTORS if entry.enabled]


def enabled_collectors(chosen):
    return [entry.name for entry, _ in chosen.collectors]


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        (tmp_path / "exporter.yml").write_text(text)
        return f"--config.file={tmp_path}/exporter.yml"

    return write


def test_defaults():
    chosen = parse_settings([])
    assert chosen.action == "serve"
    assert chosen.web.listen_address == (":10910",)
    assert chosen.web.max_requests == 40
    assert chosen.host.procfs == "/proc"
    assert enabled_collectors(chosen) == DEFAULTS


def test_flags():
    chosen = parse_settings(
        [
            "--once",
            "--once.wait=2s",
            "--web.listen-address=127.0.0.1:1",
            "--web.listen-address=[::1]:2",
            "--web.allow-from=10.0.0.0/8",
            "--web.config.file=/etc/web.yml",
            "--path.procfs=/host/proc",
            "--log.level=debug",
        ]
    )
    assert chosen.action == "once"
    assert chosen.once_wait == 2
    assert chosen.web.listen_address == ("127.0.0.1:1", "[::1]:2")
    assert chosen.web.allow_from == (ipaddress.ip_network("10.0.0.0/8"),)
    assert chosen.web.config_file == "/etc/web.yml"
    assert chosen.host.procfs == "/host/proc"
    assert chosen.log.level == "debug"


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--no-collector.node"], [name for name in DEFAULTS if name != "node"]),
        (["--collector.disable-defaults"], []),
        (["--collector.disable-defaults", "--collector.node"], ["node"]),
    ],
)
def test_collector_flags(flags, names):
    assert enabled_collectors(parse_settings(flags)) == names


def test_flags_override_file_and_file_overrides_defaults(config_file):
    flag = config_file(
        """
web:
  listen-address: [":1", ":2"]
  max-requests: 7
  config.file: /etc/web.yml
web.telemetry-path: /m
collector:
  disable-defaults: true
  node: true
log.level: error
"""
    )
    chosen = parse_settings([flag, "--web.max-requests=8"])
    assert chosen.web.listen_address == (":1", ":2")
    assert chosen.web.max_requests == 8
    assert chosen.web.telemetry_path == "/m"
    assert chosen.web.config_file == "/etc/web.yml"
    assert chosen.log.level == "error"
    assert enabled_collectors(chosen) == ["node"]
    assert enabled_collectors(parse_settings([flag, "--no-collector.node"])) == []


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--web.listen-adress=:1", "unknown flag --web.listen-adress; did you mean --web.listen-"),
        ("--collector.nod", "unknown flag --collector.nod; did you mean --collector.node"),
        ("--web.listen=:1", "unknown flag --web.listen"),
        ("--web.listen-address=1", "web.listen-address: expected :PORT"),
        ("--web.allow-from=host", "web.allow-from: expected a network"),
        ("--web.max-requests=-1", "web.max-requests: expected a whole number"),
        ("--web.max-requests", "web.max-requests: expected one argument"),
        ("--web.telemetry-path=metrics", "web.telemetry-path: expected a path"),
        ("--log.level=loud", "log.level: expected one of debug"),
        ("--once.wait=soon", "once.wait: expected a duration"),
        ("extra", "unexpected argument 'extra'"),
        ("--config.file=/nothing.yml", "/nothing.yml: No such file"),
    ],
)
def test_invalid_flags_are_one_line_errors(flag, complaint):
    with pytest.raises(SettingsError) as raised:
        parse_settings([flag])
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("web:\n  listen-adress: x\n", "exporter.yml:2: unknown key web.listen-adress; did you"),
        ("\nweb.max-requests: many\n", "exporter.yml:2: web.max-requests: expected a whole"),
        ("web: 5\n", "exporter.yml:1: unknown key web"),
        ("collector:\n  nod: true\n", "exporter.yml:2: unknown key collector.nod; did you"),
        ("collector.node: maybe\n", "collector.node: expected true or false, got 'maybe'"),
        ("- web\n", "expected a mapping"),
        ("a: &a [*a]\n", "exporter.yml"),
        ("? [x]\n: y\n", "exporter.yml:1: unknown key"),
        ("web.max-requests: 2020-99-99\n", "exporter.yml:1: web.max-requests:"),
    ],
)
def test_invalid_files_are_one_line_errors(config_file, text, complaint):
    with pytest.raises(SettingsError) as raised:
        parse_settings([config_file(text)])
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
