"""TLS on a non-blocking socket, and contexts from the web configuration."""

import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, TypeVar

from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.secret_files import SecretFileError, check_private_key
from batchjob_exporter.web.config import Tls
from batchjob_exporter.web.connection import Stream, WouldBlock
from batchjob_exporter.web.message import render_response, text_response

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
# Go's five names (crypto/tls ClientAuthType). Python's ssl verifies every certificate that it
# requests, so "request, do not verify" requests none, and "require any" requires a valid one.
_VERIFY_MODES = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "RequireAnyClientCert": ssl.CERT_REQUIRED,
    "RequireClientCert": ssl.CERT_REQUIRED,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
T = TypeVar("T")


def tls_context(tls: Tls) -> ssl.SSLContext:
    """A server's context. Raises SettingsError naming the file or key that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    if tls.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = _VERIFY_MODES[tls.client_auth_type]
    for path in tls.files:
        try:
            with open(path, "rb"):
                check_private_key(path)
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from error
        except SecretFileError as error:
            raise SettingsError(str(error)) from error
    try:
        # Without a password, OpenSSL would prompt for that of an encrypted key on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")
    except (ssl.SSLError, ValueError, OSError) as error:
        message = f"{tls.cert_file}: certificate and key cannot be used: {reason(error)}"
        raise SettingsError(message) from error
    try:
        if tls.client_ca_file:
            context.load_verify_locations(tls.client_ca_file)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{tls.client_ca_file}: expected CA certificates: {error}") from error
    return context


class TlsStream(Stream):
    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, allowed_sans: tuple[str, ...]
    ) -> None:
        """Take over the socket: `connection` is empty afterwards."""
        self.socket: ssl.SSLSocket = context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        self._allowed_sans = allowed_sans

    def handshake(self) -> None:
        """One step of the handshake; the last one checks the client's names."""
        try:
            _translate_would_block(self.socket.do_handshake)
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                said = text_response(HTTPStatus.BAD_REQUEST, "this port speaks HTTPS")
                os.write(self.socket.fileno(), render_response(said, keep_alive=False))
            raise
        names: Any = (self.socket.getpeercert() or {}).get("subjectAltName", ())
        if self._allowed_sans and not any(
            _normalize_san(*pair) in self._allowed_sans for pair in names
        ):
            raise PermissionError("the client certificate has no name in client_allowed_sans")

    def receive(self, size: int) -> bytes:
        return _translate_would_block(lambda: self.socket.recv(size), EVENT_READ)

    def send(self, data: memoryview) -> int:
        return _translate_would_block(lambda: self.socket.send(data), EVENT_WRITE)


def _translate_would_block(operation: Callable[[], T], blocked_on: int = EVENT_READ) -> T:
    """Call an operation; raises WouldBlock. TLS may have to read before it can write."""
    try:
        return operation()
    except ssl.SSLWantReadError:
        raise WouldBlock(EVENT_READ) from None
    except ssl.SSLWantWriteError:
        raise WouldBlock(EVENT_WRITE) from None
    except BlockingIOError:  # TLS was shut down, but the socket below is still read
        raise WouldBlock(blocked_on) from None


def _normalize_san(kind: str, value: str) -> str:
    """A SAN as exporter-toolkit compares it; OpenSSL does not abbreviate IPv6 addresses."""
    return str(ipaddress.ip_address(value)) if kind == "IP Address" else value
