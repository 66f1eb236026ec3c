"""Whom a client's certificate names, and when it names nobody."""

import datetime as dt
import os

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.certificates import (
    Certificates,
    CertificateSubject,
    InvalidCertificate,
)
from tests.batchjob_stats_server.authority import Authority, pem

NOW = 1_775_300_000
MOMENT = dt.datetime.fromtimestamp(NOW, dt.UTC)
VERA = (("CN", "vera"), ("OU", "viewer"))


@pytest.fixture(scope="module")
def authority():
    return Authority("the site", MOMENT)


@pytest.fixture
def judge(authority, tmp_path):
    """Judges of that CA; with the text of a revocation list."""

    def made(revoked=b""):
        (tmp_path / "ca.pem").write_bytes(pem(authority.certificate))
        if revoked:
            (tmp_path / "crl.pem").write_bytes(revoked)
        return Certificates(str(tmp_path / "ca.pem"), str(tmp_path / "crl.pem") * bool(revoked))

    return made


def text(certificate):
    return pem(certificate).decode()


def test_name_and_role(judge, authority):
    of = judge().verify
    admin, _ = authority.issue(("CN", "root"), ("OU", "operations"), ("OU", "admin"))
    vera, _ = authority.issue(*VERA)
    assert of(text(vera), NOW)[:2] == ("vera", TokenRole.VIEWER)
    end, name = NOW + 5 * 86400, f"{admin.serial_number:x} CN=the site"
    assert of(text(admin), NOW) == CertificateSubject("root", TokenRole.ADMIN, end, name)


def test_a_certificate_is_looked_up_by_its_name(judge, authority):
    """As tokens keep it that were made with it."""
    certificate, _ = authority.issue(*VERA)
    name = judge().verify(text(certificate), NOW).certificate
    judge().check_issuer_and_revocation(name, NOW)
    judge(authority.revocation_list()).check_issuer_and_revocation(name, NOW)
    for lists, said in (
        (authority.revocation_list(certificate), "revoked"),
        (authority.revocation_list(days=-1), "no current revocation list"),
    ):
        with pytest.raises(InvalidCertificate, match=said):
            judge(lists).check_issuer_and_revocation(name, NOW)
    with pytest.raises(InvalidCertificate, match="not issued by a CA of this server"):
        judge().check_issuer_and_revocation("1f CN=another site", NOW)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ([("CN", "vera")], "one OU that is admin or viewer"),
        ([("CN", "vera"), ("OU", "Viewer")], "one OU"),
        ([("CN", "vera"), ("OU", "viewer,admin")], "one OU"),
        ([("CN", "vera"), ("OU", "viewer"), ("OU", "admin")], "one OU"),
        ([("OU", "viewer")], "one CN"),
        ([("CN", "vera"), ("CN", "root"), ("OU", "viewer")], "one CN"),
    ],
)
def test_a_subject_that_says_too_little_or_too_much(judge, authority, subject, words):
    with pytest.raises(InvalidCertificate, match=words):
        judge().verify(text(authority.issue(*subject)[0]), NOW)


def test_a_certificate_ends_while_its_connection_lives(judge, authority):
    certificate, of = text(authority.issue(*VERA, days=1)[0]), judge().verify
    assert of(certificate, NOW + 86400)
    for moment in (NOW + 86401, NOW - 9 * 86400):
        with pytest.raises(InvalidCertificate, match="expired or is not yet valid"):
            of(certificate, moment)


def test_the_list_is_read_again_when_it_changes(judge, authority, tmp_path):
    certificate, _ = authority.issue(*VERA)
    made = judge(authority.revocation_list())
    assert made.verify(text(certificate), NOW)
    (tmp_path / "new").write_bytes(authority.revocation_list(certificate))
    os.replace(tmp_path / "new", tmp_path / "crl.pem")
    for _ in range(2):
        with pytest.raises(InvalidCertificate, match="revoked"):
            made.verify(text(certificate), NOW)


@pytest.mark.parametrize("damaged", [b"", b"junk", None])
def test_a_damaged_list_changes_nothing(judge, authority, tmp_path, damaged, caplog):
    certificate, _ = authority.issue(*VERA)
    made = judge(authority.revocation_list(certificate))
    if damaged is None:
        os.unlink(tmp_path / "crl.pem")
    else:
        (tmp_path / "crl.pem").write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(InvalidCertificate, match="revoked"):
            made.verify(text(certificate), NOW)
    assert caplog.text.count("the previous list remains in use") == 1


def test_a_list_that_has_ended_proves_nothing(judge, authority):
    certificate, _ = authority.issue(*VERA)
    made = judge(authority.revocation_list(days=-1))
    with pytest.raises(InvalidCertificate, match="no current revocation list"):
        made.verify(text(certificate), NOW)
    renewed = judge(authority.revocation_list(days=-1) + authority.revocation_list())
    assert renewed.verify(text(certificate), NOW)


def test_a_list_must_be_the_authority_s(judge, authority):
    other = Authority("the site", MOMENT)  # the same name, another key
    for wrong in (other.revocation_list(), Authority("else", MOMENT).revocation_list(), b"x"):
        with pytest.raises(SettingsError, match=r"auth\.client-crl-file: .*crl\.pem"):
            judge(wrong)


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nx"])
def test_a_ca_file_that_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(SettingsError, match=r"auth\.client-ca-file: .*ca\.pem"):
        Certificates(str(tmp_path / "ca.pem"), "")
