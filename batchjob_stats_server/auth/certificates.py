"""TLS, and client certificates: the user and role they identify, and whether they are still valid.

TLS checks that the site's CA issued a certificate for clients. What may change later is checked for
each request, since connections and TLS sessions live long: its expiry, and the list of revoked
certificates (RFC 5280 section 5).
"""

import logging
import re
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.secret_files import SecretFileError, check_private_key, file_stamp
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.rights import CredentialError, Principal
from batchjob_stats_server.options import AuthOptions, ServerWebOptions

log = logging.getLogger(__name__)

_ROLES = {"admin": TokenRole.ADMIN, "viewer": TokenRole.VIEWER}
_CRL_PEM = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


RevocationLists = Mapping[str, Sequence[x509.CertificateRevocationList]]
"""Revocation lists by the name of their issuer (RFC 4514)."""


class Certificates:
    """Checks certificates of the CAs of one file; reloads the revocation list when it changes."""

    def __init__(self, ca_file: str, crl_file: str) -> None:
        """Raises SettingsError.

        Without a `ca_file`, no certificate identifies anybody; without a `crl_file`, revocation is
        not checked.
        """
        self.are_accepted = bool(ca_file)
        self._authorities: Sequence[x509.Certificate] = ()
        if ca_file:
            where = f"auth.client-ca-file: {ca_file}"
            try:
                self._authorities = x509.load_pem_x509_certificates(_read_file(where, ca_file))
            except ValueError as error:
                raise SettingsError(f"{where}: expected CA certificates (PEM)") from error
        self._crl_file = crl_file
        self._reload_lock = threading.Lock()
        self._crl_stamp = file_stamp(crl_file) if crl_file else None
        self._revocation_lists: RevocationLists = self._load_revocation_lists() if crl_file else {}

    def verify(self, pem: str, now: float) -> Principal:
        """Whom a valid certificate names; raises CredentialError. `now`: epoch seconds.

        Their name is the CN, their role an OU; `Principal.certificate` is the serial number and the
        issuer, which together are unique.
        """
        certificate = x509.load_pem_x509_certificate(pem.encode())
        moment = datetime.fromtimestamp(now, UTC)
        if not certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc:
            raise CredentialError("the certificate has expired or is not yet valid")
        if self._crl_file:
            self._check_revocation(_issuer(certificate), certificate.serial_number, moment)
        users, units = (
            [str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)]
            for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
        )
        roles = [_ROLES[unit] for unit in units if unit in _ROLES]
        if len(roles) != 1:
            raise CredentialError("expected a certificate with one OU that is admin or viewer")
        if len(users) != 1:
            raise CredentialError("expected a certificate with one CN")
        end = int(certificate.not_valid_after_utc.timestamp())
        name = f"{certificate.serial_number:x} {_issuer(certificate)}"
        return Principal(users[0], roles[0], "certificate", expiry_time=end, certificate=name)

    def check_issuer_and_revocation(self, name: str, now: float) -> None:
        """Check a `Principal.certificate` except for expiry; raises CredentialError."""
        serial, _, issuer = name.partition(" ")
        if issuer not in (each.subject.rfc4514_string() for each in self._authorities):
            raise CredentialError("the certificate was not issued by a CA of this server")
        if self._crl_file:
            self._check_revocation(issuer, int(serial, 16), datetime.fromtimestamp(now, UTC))

    def _check_revocation(self, issuer: str, serial: int, moment: datetime) -> None:
        self._reload_if_changed()
        lists = self._revocation_lists.get(issuer, ())
        if any(each.get_revoked_certificate_by_serial_number(serial) for each in lists):
            raise CredentialError("the certificate has been revoked")
        # Without a current list, the certificate may have been revoked since.
        ends = [each.next_update_utc for each in lists]
        if not any(end is None or moment <= end for end in ends):
            raise CredentialError("no current revocation list for the certificate")

    def _reload_if_changed(self) -> None:
        with self._reload_lock:
            try:
                stamp = file_stamp(self._crl_file)
                if stamp == self._crl_stamp:
                    return
                self._crl_stamp = stamp
                self._revocation_lists = self._load_revocation_lists()
                log.info("auth.client-crl-file: reloaded")
            except SettingsError as error:
                log.error("%s; the previous list remains in use", error)

    def _load_revocation_lists(self) -> RevocationLists:
        lists: dict[str, list[x509.CertificateRevocationList]] = {}
        where = f"auth.client-crl-file: {self._crl_file}"
        for text in _CRL_PEM.findall(_read_file(where, self._crl_file)):
            try:
                each = x509.load_pem_x509_crl(text)
            except ValueError as error:
                raise SettingsError(
                    f"{where}: not a certificate revocation list: {error}"
                ) from error
            if not any(_is_signed_by(each, authority) for authority in self._authorities):
                raise SettingsError(f"{where}: not signed by a CA of auth.client-ca-file")
            lists.setdefault(_issuer(each), []).append(each)
        if not lists:
            raise SettingsError(f"{where}: expected a certificate revocation list (PEM)")
        return lists


def _issuer(signed: x509.Certificate | x509.CertificateRevocationList) -> str:
    return signed.issuer.rfc4514_string()


def _is_signed_by(each: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key: Any = authority.public_key()
    try:
        return each.issuer == authority.subject and each.is_signature_valid(key)
    except TypeError:  # a key of a type that cannot sign
        return False


def _read_file(where: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}") from error


def tls_context(
    web: ServerWebOptions, auth: AuthOptions, refused: Callable[[], None]
) -> ssl.SSLContext:
    """TLS 1.2 and newer; a client's certificate is optional, but a bad one ends the connection.

    `refused` is called for each of these. Raises SettingsError naming the file that is not usable.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.set_alpn_protocols(["http/1.1"])
    try:
        check_private_key(web.tls_key_file)
    except SecretFileError as error:
        raise SettingsError(f"web.tls-key-file: {error}") from error
    try:
        # For an encrypted key, OpenSSL would ask for the password on the terminal.
        tls.load_cert_chain(web.tls_cert_file, web.tls_key_file, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"web.tls-cert-file: {web.tls_cert_file}, {web.tls_key_file}: {reason(error)}"
        ) from error
    if auth.client_ca_file:
        tls.verify_mode = ssl.CERT_OPTIONAL
        try:
            tls.load_verify_locations(auth.client_ca_file)
        except OSError as error:
            raise SettingsError(
                f"auth.client-ca-file: {auth.client_ca_file}: {reason(error)}"
            ) from error
        tls.sslobject_class = _alerting_class(refused)
    return tls


def _alerting_class(refused: Callable[[], None]) -> type[ssl.SSLObject]:
    class AlertingSslObject(ssl.SSLObject):
        """Sends the alert that says what is wrong to the client: asyncio would not."""

        error: ssl.SSLCertVerificationError | None = None

        def do_handshake(self) -> None:
            if self.error is not None:
                raise self.error
            try:
                super().do_handshake()
            except ssl.SSLCertVerificationError as error:
                self.error = error
                refused()
                log.info("refused a client's certificate: %s", error.verify_message)
                # asyncio then sends what TLS has written so far, and calls this again when the
                # client closes the connection.
                raise ssl.SSLWantReadError from error

    return AlertingSslObject
