"""TLS contexts, and the checks of client certificates that TLS makes: CA and validity."""

import logging
import ssl
from collections.abc import Callable

from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.secret_files import SecretFileError, check_private_key
from batchjob_stats_server.options import AuthOptions, ServerWebOptions

log = logging.getLogger(__name__)


def context(
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
