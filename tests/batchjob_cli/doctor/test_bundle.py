"""A file for a bug report names nobody and holds no secret."""

import os
import pwd
import re
import stat
from pathlib import Path

import pytest

from batchjob_cli.doctor.bundle import without_audit
from batchjob_cli.doctor.redaction import Redaction, find_hosts, find_logins
from batchjob_cli.main import main

ROOT = Path(__file__).parents[3]
SETTINGS = """\
web.listen-address: 192.0.2.7:10910
collector.ipmi.password-file: /etc/batchjob/ipmi.password
password: hunter2
emissions.api-key: 0123456789abcdef
db.url: postgresql://alice:hunter2@db.example.org/jobs
note: ask alice, or bob@example.org; malice is another word
authorization: Bearer abc.def
token: bj_AAAAAAAAAAAAAAAAAAAAAAAA
"""


@pytest.fixture
def redacted():
    return Redaction(["alice", "bob"], ["n001.example.org", "n001"])


def test_private_values_are_redacted(redacted):
    text = redacted(SETTINGS)
    for private in ("hunter2", "alice,", "bob@", "192.0.2.7", "0123456789abcdef", "bj_", "abc.def"):
        assert private not in text
    assert "collector.ipmi.password-file: /etc/batchjob/ipmi.password" in text
    assert "malice is another word" in text
    assert "web.listen-address: address1:10910" in text


def test_same_name_gets_same_number(redacted):
    assert redacted("alice on n001") == redacted("alice on n001")
    first, second = redacted("alice"), redacted("bob")
    assert {first, second} == {"user1", "user2"}
    assert redacted("192.0.2.7 192.0.2.8 192.0.2.7 127.0.0.1") == (
        "address1 address2 address1 127.0.0.1"
    )


def test_private_keys_are_redacted(redacted):
    key = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
    assert redacted(f"before\n{key}\nafter") == "before\nREDACTED\nafter"


@pytest.mark.parametrize(
    "text",
    [
        'password: "abc#hunter2"',
        "password: |\n  hunter2\n",
        "tsdb:\n  password: >-\n    first\n    hunter2\n",
        'Nov 22 12:00:00 here batchjob[7]: msg="login failed, password=hunter2"',
        "doctor --a=b --tsdb.password=hunter2 --c=d",
        "postgresql://alice:hun@hunter2@db.example.org/jobs",
        "Authorization: Basic hunter2hunter2==",
        "headers: {authorization: Basic hunter2hunter2==}",
        "passwd: hunter2",
        "https://db.example.org/write?api_key=hunter2&x=1",
        "Cookie: __Host-batchjob=bs_hunter2hunter2hunter2hunter2",
        "tsdb: {username: us, password: hunter2}",
        "- {password: 'a, hunter2'}",
        '{"password": "a hunter2"}',
        "tsdb.header: ['X-Scope-OrgID: hpc', 'X-Api-Key: hunter2']",
        'msg="refused" header="X-Batchjob-Secret: hunter2"',
        "web: {pass: hunter2}",
        "credentials: hunter2",
        "cookie: session=hunter2",
        "basic_auth_users:\n  prometheus: hunter2\n  grafana: hunter2",
        "basic_auth_users: {prometheus: hunter2}",
        "collector.ipmi.command: ipmitool -I lanplus -U admin -P hunter2 dcmi power reading",
        "collector.ipmi.command: ipmi-dcmi --username=us --password hunter2",
        "collector.cluster.pbsfs: sshpass -p hunter2 ssh root@pbs01",
        "batchjob_exporter --collector.redfish.password hunter2 --web.max-requests=5",
        "OPTIONS=\"--collector.redfish.password='a hunter2'\"",
    ],
)
def test_secrets_are_redacted_in_every_syntax(redacted, text):
    assert "hunter2" not in redacted(text)


def test_secrets_are_redacted_in_every_option(redacted):
    """Wherever an address or a header may stand, the secret in it is cut out."""
    pages = ("options", "server_options", "stats_db_options")
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in pages)
    names = set(re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE))
    assert {"collector.redfish.url", "tsdb.header", "db.url"} <= names
    for name in names:
        for value in (
            "https://us:hunter2@bmc.example.org/x?token=hunter2", "'X-Api-Key: hunter2'",
            "[ipmitool -U us -P hunter2 sensor]", "curl -H 'Authorization: Bearer hunter2' x",
        ):  # fmt: skip
            assert "hunter2" not in redacted(f"{name}: {value}\n--{name}={value}")


@pytest.mark.parametrize(
    "text",
    [
        "auth.secret-file: /etc/x", "--tsdb.password-file=/etc/x", "a: 5  # secret",
        "auth: {secret-file: /etc/x, admin: [root]}", "--tsdb.password-file /etc/x",
        "12:34:56 0:00:01", "web.listen-address: '[::]:10910'", "mkdir -p /var/lib/batchjob",
        "tsdb.url: http://localhost:9090", "db.url: sqlite:////var/lib/batchjob/jobs.db",
    ],
)  # fmt: skip
def test_harmless_text_is_unchanged(redacted, text):
    assert redacted(text) == text


def test_ipv6_addresses_are_redacted(redacted):
    shown = redacted("2001:db8::5 fe80::1%eth0 2001:db8:0:0:0:0:0:7 ::1 2001:db8::5")
    assert shown == "address1 address2%eth0 address3 ::1 address1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tsdb.url: http://prometheus-alpha:9090", "tsdb.url: http://host3:9090"),
        ("db.url: postgresql://bj@/bj?host=db1:5432&host=db2", "?host=host3:5432&host=host4"),
        ("ssh: root@pbs01", "ssh: root@host3"),
        ("https://{node}-bmc/redfish https://stats.example.org", "https://{node}-bmc/redfish https://host3"),
    ],
)  # fmt: skip
def test_hosts_in_settings_are_redacted(redacted, text, shown):
    assert shown in redacted(text)


def test_host_of_settings_is_redacted_in_log():
    settings, log = "tsdb.url: https://tsdb.example.org/prom", "tsdb.example.org: timed out"
    redacted = Redaction([], find_hosts(settings, log))
    assert "tsdb.example.org" not in redacted(settings) + redacted(log)


def test_logins_of_directory_service_are_found():
    """A directory service names people whom it does not list; the kernel's root is no person."""
    nobody, root = pwd.getpwuid(65534).pw_name, "root"
    known = find_logins(
        {nobody, root, "carol"}, of_name=lambda name: 5001 if name == "carol" else 0
    )
    assert "carol" in known
    assert not {nobody, root} & set(known)


def test_audit_lines_are_left_out():
    lines = (
        b'ts=1 level=info logger=batchjob.audit msg="vera (viewer) saw jobs of zoe"\n'
        b'{"ts": "1", "level": "info", "logger": "batchjob.audit", "msg": "vera saw"}\n'
        b'ts=1 level=info logger=batchjob.poller msg="done"\n'
    )
    assert without_audit(lines) == b'ts=1 level=info logger=batchjob.poller msg="done"\n'


def test_bundle_file_is_private_and_not_overwritten(tmp_path, capsys):
    settings, file = tmp_path / "exporter.yml", tmp_path / "report.txt"
    settings.write_text("web.max-requests: 7  # at n9, 192.0.2.77\n")
    main(["doctor", f"--bundle={file}", "--config.file", str(settings)])
    assert str(file) in capsys.readouterr().out
    text = file.read_text()
    for title in ("== versions\nbatchjob ", "== doctor\n", f"== {settings}\n", "== log\n"):
        assert title in text
    assert "web.max-requests: 7" in text
    assert "192.0.2.77" not in text
    assert os.uname().nodename not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["doctor", f"--bundle={file}"]) == 2
    assert f"--bundle: {file}: File exists" in capsys.readouterr().err
