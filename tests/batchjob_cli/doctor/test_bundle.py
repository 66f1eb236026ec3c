"""A file for a bug report names nobody and holds no secret."""

import os
import stat

import pytest

from batchjob_cli.doctor.redaction import Redaction
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
