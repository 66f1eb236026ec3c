"""Client certificates: user, role, validity and revocation."""

import datetime as dt
import os

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.certificates import Certificates, CredentialError
from batchjob_stats_server.auth.rights import Principal
from tests.batchjob_stats_server.authority import Authority, pem

NOW = 1_775_300_000
MOMENT = dt.datetime.fromtimestamp(NOW, dt.UTC)
VERA = (("CN", "vera"), ("OU", "viewer"))


@pytest.fixture(scope="module")
def authority():
    return Authority("the site", MOMENT)


@pytest.fixture
def make_certificates(authority, tmp_path):
    """Make `Certificates` of that CA, with a revocation list."""

    def make(revoked=b""):
        (tmp_path / "ca.pem").write_bytes(pem(authority.certificate))
        if revoked:
            (tmp_path / "crl.pem").write_bytes(revoked)
        return Certificates(str(tmp_path / "ca.pem"), str(tmp_path / "crl.pem") * bool(revoked))

    return make


def pem_text(certificate):
    return pem(certificate).decode()


def test_certificate_names_user_and_role(make_certificates, authority):
    verify = make_certificates().verify
    admin, _ = authority.issue(("CN", "root"), ("OU", "operations"), ("OU", "admin"))
    vera, _ = authority.issue(*VERA)
    assert verify(pem_text(vera), NOW)[:2] == ("vera", TokenRole.VIEWER)
    end, name = NOW + 5 * 86400, f"{admin.serial_number:x} CN=the site"
    assert verify(pem_text(admin), NOW) == Principal(
        "root", TokenRole.ADMIN, "certificate", expiry_time=end, certificate=name
    )


def test_certificate_is_checked_by_its_name(make_certificates, authority):
    """As for tokens, which store the name of the certificate they were created with."""
    certificate, _ = authority.issue(*VERA)
    name = make_certificates().verify(pem_text(certificate), NOW).certificate
    make_certificates().check_issuer_and_revocation(name, NOW)
    make_certificates(authority.revocation_list()).check_issuer_and_revocation(name, NOW)
    for lists, said in (
        (authority.revocation_list(certificate), "revoked"),
        (authority.revocation_list(days=-1), "no current revocation list"),
    ):
        with pytest.raises(CredentialError, match=said):
            make_certificates(lists).check_issuer_and_revocation(name, NOW)
    with pytest.raises(CredentialError, match="not issued by a CA of this server"):
        make_certificates().check_issuer_and_revocation("1f CN=another site", NOW)


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
def test_incomplete_or_ambiguous_subject_is_rejected(make_certificates, authority, subject, words):
    with pytest.raises(CredentialError, match=words):
        make_certificates().verify(pem_text(authority.issue(*subject)[0]), NOW)


def test_certificate_can_expire_during_a_connection(make_certificates, authority):
    certificate, verify = pem_text(authority.issue(*VERA, days=1)[0]), make_certificates().verify
    assert verify(certificate, NOW + 86400)
    for moment in (NOW + 86401, NOW - 9 * 86400):
        with pytest.raises(CredentialError, match="expired or is not yet valid"):
            verify(certificate, moment)


def test_changed_revocation_list_is_reloaded(make_certificates, authority, tmp_path):
    certificate, _ = authority.issue(*VERA)
    certificates = make_certificates(authority.revocation_list())
    assert certificates.verify(pem_text(certificate), NOW)
    (tmp_path / "new").write_bytes(authority.revocation_list(certificate))
    os.replace(tmp_path / "new", tmp_path / "crl.pem")
    for _ in range(2):
        with pytest.raises(CredentialError, match="revoked"):
            certificates.verify(pem_text(certificate), NOW)


@pytest.mark.parametrize("damaged", [b"", b"junk", None])
def test_damaged_revocation_list_keeps_the_previous_one(
    make_certificates, authority, tmp_path, damaged, caplog
):
    certificate, _ = authority.issue(*VERA)
    certificates = make_certificates(authority.revocation_list(certificate))
    if damaged is None:
        os.unlink(tmp_path / "crl.pem")
    else:
        (tmp_path / "crl.pem").write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(CredentialError, match="revoked"):
            certificates.verify(pem_text(certificate), NOW)
    assert caplog.text.count("the previous list remains in use") == 1


def test_expired_revocation_list_is_not_trusted(make_certificates, authority):
    certificate, _ = authority.issue(*VERA)
    certificates = make_certificates(authority.revocation_list(days=-1))
    with pytest.raises(CredentialError, match="no current revocation list"):
        certificates.verify(pem_text(certificate), NOW)
    renewed = make_certificates(authority.revocation_list(days=-1) + authority.revocation_list())
    assert renewed.verify(pem_text(certificate), NOW)


def test_revocation_list_of_another_authority_is_rejected(make_certificates, authority):
    other = Authority("the site", MOMENT)  # the same name, another key
    for wrong in (other.revocation_list(), Authority("else", MOMENT).revocation_list(), b"x"):
        with pytest.raises(SettingsError, match=r"auth\.client-crl-file: .*crl\.pem"):
            make_certificates(wrong)


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nx"])
def test_invalid_ca_file_is_rejected(tmp_path, content):
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(SettingsError, match=r"auth\.client-ca-file: .*ca\.pem"):
        Certificates(str(tmp_path / "ca.pem"), "")
