"""A file for a bug report names nobody and holds no secret."""

import os
import pwd
import stat

import pytest

from batchjob_cli.doctor.bundle import without_audit
from batchjob_cli.doctor.redaction import Redaction, people
from batchjob_cli.main import main

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


def test_people_hosts_addresses_and_secrets(redacted):
    text = redacted(SETTINGS)
    for private in ("hunter2", "alice,", "bob@", "192.0.2.7", "0123456789abcdef", "bj_", "abc.def"):
        assert private not in text
    assert "collector.ipmi.password-file: /etc/batchjob/ipmi.password" in text
    assert "malice is another word" in text
    assert "web.listen-address: address1:10910" in text


def test_the_same_name_has_the_same_number(redacted):
    assert redacted("alice on n001") == redacted("alice on n001")
    first, second = redacted("alice"), redacted("bob")
    assert {first, second} == {"user1", "user2"}
    assert redacted("192.0.2.7 192.0.2.8 192.0.2.7 127.0.0.1") == (
        "address1 address2 address1 127.0.0.1"
    )


def test_keys_and_certificates(redacted):
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
    ],
)
def test_secrets_in_any_place(redacted, text):
    assert "hunter2" not in redacted(text)


@pytest.mark.parametrize(
    "text",
    ["auth.secret-file: /etc/x", "--tsdb.password-file=/etc/x", "token: unknown", "a: 5  # secret"],
)
def test_what_is_no_secret_stays(redacted, text):
    assert redacted(text) == text or text.startswith("token")


def test_people_that_no_list_has():
    """A directory service names people whom it does not list; the kernel's root is no person."""
    nobody, root = pwd.getpwuid(65534).pw_name, "root"
    known = people({nobody, root, "carol"}, of_name=lambda name: 5001 if name == "carol" else 0)
    assert "carol" in known
    assert not {nobody, root} & set(known)


def test_who_looked_at_whose_jobs_is_left_out():
    lines = (
        b'ts=1 level=info logger=batchjob.audit msg="vera (viewer) saw jobs of zoe"\n'
        b'{"ts": "1", "level": "info", "logger": "batchjob.audit", "msg": "vera saw"}\n'
        b'ts=1 level=info logger=batchjob.poller msg="done"\n'
    )
    assert without_audit(lines) == b'ts=1 level=info logger=batchjob.poller msg="done"\n'


def test_one_file_for_its_owner(tmp_path, capsys):
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
