"""Clients' certificates: the user and role they stand for, and whether they are still valid.

TLS checks that the site's CA issued a certificate for clients. What may change later is checked for
each request, since connections and TLS sessions live long: its expiry, and the list of revoked
certificates (RFC 5280 section 5).
"""

import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.database.tokens import TokenRole

log = logging.getLogger(__name__)

_ROLES = {"admin": TokenRole.ADMIN, "viewer": TokenRole.VIEWER}
_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


class InvalidCertificate(Exception):
    """A certificate that does not identify a user; the text is for its owner."""


class CertificateSubject(NamedTuple):
    """The name in a certificate (CN), its role (OU), its expiry and its serial number."""

    user: str
    role: TokenRole
    expiry_time: int
    certificate: str  # serial number and issuer, which together are unique


Lists = Mapping[str, Sequence[x509.CertificateRevocationList]]
"""By the name of who issued them (RFC 4514)."""


class Certificates:
    """Checks the certificates of one CA file; reads the list again when its file changes."""

    def __init__(self, ca_file: str, crl_file: str) -> None:
        """Raises SettingsError. Without a `crl_file` nothing is ever revoked."""
        self._authorities = _authorities(ca_file)
        self._crl_file = crl_file
        self._reading = threading.Lock()
        self._seen = _stamp(crl_file) if crl_file else None
        self._lists: Lists = self._read() if crl_file else {}

    def bearer(self, pem: str, now: float) -> CertificateSubject:
        """Raises NotBelieved. `now`: epoch seconds."""
        certificate = x509.load_pem_x509_certificate(pem.encode())
        moment = datetime.fromtimestamp(now, UTC)
        if not certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc:
            raise InvalidCertificate("the certificate has expired or is not yet valid")
        if self._crl_file:
            self._check_revocation(_issuer(certificate), certificate.serial_number, moment)
        users, units = (
            [str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)]
            for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
        )
        roles = [_ROLES[unit] for unit in units if unit in _ROLES]
        if len(roles) != 1:
            raise InvalidCertificate("expected a certificate with one OU that is admin or viewer")
        if len(users) != 1:
            raise InvalidCertificate("expected a certificate with one CN")
        end = int(certificate.not_valid_after_utc.timestamp())
        name = f"{certificate.serial_number:x} {_issuer(certificate)}"
        return CertificateSubject(users[0], roles[0], end, name)

    def check(self, name: str, now: float) -> None:
        """Check all but the expiry of a Bearer's certificate; raises NotBelieved."""
        serial, _, issuer = name.partition(" ")
        if issuer not in (each.subject.rfc4514_string() for each in self._authorities):
            raise InvalidCertificate("the certificate was not issued by a CA of this server")
        if self._crl_file:
            self._check_revocation(issuer, int(serial, 16), datetime.fromtimestamp(now, UTC))

    def _check_revocation(self, issuer: str, serial: int, moment: datetime) -> None:
        self._refresh()
        lists = self._lists.get(issuer, ())
        if any(each.get_revoked_certificate_by_serial_number(serial) for each in lists):
            raise InvalidCertificate("the certificate has been revoked")
        # A list that is expired or missing may lack the one entry that matters.
        ends = [each.next_update_utc for each in lists]
        if not any(end is None or moment <= end for end in ends):
            raise InvalidCertificate("no current revocation list for the certificate")

    def _refresh(self) -> None:
        with self._reading:
            try:
                stamp = _stamp(self._crl_file)
                if stamp == self._seen:
                    return
                self._seen = stamp
                self._lists = self._read()
                log.info("auth.client-crl-file: reloaded")
            except SettingsError as error:
                log.error("%s; the previous list remains in use", error)

    def _read(self) -> Lists:
        found: dict[str, list[x509.CertificateRevocationList]] = {}
        where = f"auth.client-crl-file: {self._crl_file}"
        for text in _LIST.findall(_content(where, self._crl_file)):
            try:
                each = x509.load_pem_x509_crl(text)
            except ValueError as error:
                raise SettingsError(
                    f"{where}: not a certificate revocation list: {error}"
                ) from error
            if not any(_signed(each, authority) for authority in self._authorities):
                raise SettingsError(f"{where}: not signed by a CA of auth.client-ca-file")
            found.setdefault(_issuer(each), []).append(each)
        if not found:
            raise SettingsError(f"{where}: expected a certificate revocation list (PEM)")
        return found


def _issuer(signed: x509.Certificate | x509.CertificateRevocationList) -> str:
    return signed.issuer.rfc4514_string()


def _authorities(path: str) -> list[x509.Certificate]:
    where = f"auth.client-ca-file: {path}"
    try:
        return x509.load_pem_x509_certificates(_content(where, path))
    except ValueError as error:
        raise SettingsError(f"{where}: expected CA certificates (PEM)") from error


def _signed(each: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key: Any = authority.public_key()
    try:
        return each.issuer == authority.subject and each.is_signature_valid(key)
    except TypeError:  # a key of a type that cannot sign
        return False


def _content(where: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}") from error


def _stamp(path: str) -> tuple[int, int, int] | None:
    """A value that changes with the file; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
