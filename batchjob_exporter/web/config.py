"""The file of `--web.config.file`, in the format of all Prometheus exporters.

Source: prometheus/exporter-toolkit docs/web-configuration.md. Keys that Python's TLS library does
not support are accepted with a warning, so that a site can use its existing file.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchjob.runtime.settings import (
    SettingsError,
    build_section,
    load_file,
    option,
    suggest_nearest,
)
from batchjob.runtime.values import boolean, duration, one_of, text
from batchjob.runtime.values import integer as whole
from batchjob.secret_files import SecretFileError, check_private_key

log = logging.getLogger(__name__)

_BCRYPT_HASH = re.compile(r"\$2[aby]?\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
# HTTP response headers that may be set, and their allowed values if those are limited.
_SETTABLE_HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}


def _parse_headers(value: Any) -> tuple[tuple[str, str], ...]:
    for name, content in _parse_mapping(value).items():
        if name not in _SETTABLE_HEADERS:
            raise ValueError(
                f"header {name!r} cannot be set{suggest_nearest(name, _SETTABLE_HEADERS)}"
            )
        if _SETTABLE_HEADERS[name] and content not in _SETTABLE_HEADERS[name]:
            raise ValueError(
                f"{name}: expected {' or '.join(_SETTABLE_HEADERS[name])}, got {content!r}"
            )
        if not content.isprintable() or not content.isascii():
            raise ValueError(f"{name}: expected one line of ASCII text")
    return tuple(value.items())


def _parse_users(value: Any) -> Mapping[str, str]:
    for name, hashed in _parse_mapping(value).items():
        if ":" in name:
            raise ValueError(f"user {name!r}: a name cannot hold a colon")
        if not _BCRYPT_HASH.fullmatch(hashed):
            raise ValueError(
                f"user {name!r}: expected a bcrypt hash ($2y$10$...), as `htpasswd -nB` makes it"
            )
    return dict(value)


def _parse_mapping(value: Any) -> Mapping[str, str]:
    if isinstance(value, dict) and all(isinstance(x, str) for pair in value.items() for x in pair):
        return value
    raise ValueError("expected a mapping of names to text")


def _parse_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError(f"expected a list of names, got {value!r}")


_parse_tls_version = one_of("TLS10", "TLS11", "TLS12", "TLS13")
_parse_client_auth = one_of(
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",  # an older name of RequireAnyClientCert
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)


@dataclass(frozen=True)
class Tls:
    """`tls_server_config`."""

    cert: str = option("", "Certificate chain (PEM).", key="cert")
    key: str = option("", "Private key (PEM).", key="key")
    client_ca: str = option("", "CA of the clients (PEM).", key="client_ca")
    cert_file: str = option("", "File with the certificate chain.", key="cert_file")
    key_file: str = option("", "File with the private key.", key="key_file")
    client_ca_file: str = option("", "File with the clients' CA.", key="client_ca_file")
    # fmt: off
    client_auth_type: str = option("NoClientCert",
        "Which certificate clients must present.", parse=_parse_client_auth, key="client_auth_type")
    client_allowed_sans: tuple[str, ...] = option((),
        "Accepted subject alternative names of clients.", parse=_parse_names,
        key="client_allowed_sans")
    min_version: str = option("TLS12", "Minimum TLS version.", parse=_parse_tls_version,
        key="min_version")
    max_version: str = option("TLS13", "Maximum TLS version.", parse=_parse_tls_version,
        key="max_version")
    cipher_suites: tuple[str, ...] = option((),
        "Cipher suites, by their names in Go.", parse=_parse_names, key="cipher_suites")
    prefer_server_cipher_suites: bool = option(True,
        "Whether the server's order of cipher suites is preferred.",
        key="prefer_server_cipher_suites")
    curve_preferences: tuple[str, ...] = option((),
        "Curves in order of preference.", parse=_parse_names, key="curve_preferences")
    # fmt: on

    @property
    def wanted(self) -> bool:
        """Whether the file enables TLS."""
        return self != Tls()

    @property
    def files(self) -> tuple[str, ...]:
        """Files that this configuration reads."""
        return tuple(filter(None, (self.cert_file, self.key_file, self.client_ca_file)))


@dataclass(frozen=True)
class Http:
    """`http_server_config`."""

    http2: bool = option(True, "Ignored; this server speaks HTTP/1.1.", parse=boolean, key="http2")
    # fmt: off
    headers: tuple[tuple[str, str], ...] = option((), "Response headers.", parse=_parse_headers,
        key="headers")
    # fmt: on


@dataclass(frozen=True)
class RateLimit:
    """`rate_limit`: a token bucket for all requests together."""

    interval: float = option(0.0, "Seconds per request; 0: no limit.", parse=duration)
    burst: int = option(0, "Maximum burst of requests.", parse=whole)


@dataclass(frozen=True)
class _TopLevel:
    # fmt: off
    basic_auth_users: Mapping[str, str] = option(None, "Names and bcrypt hashes.",
        parse=_parse_users, key="basic_auth_users")
    # fmt: on


class WebConfig(NamedTuple):
    """The checked contents of the file; the files it names have not been read yet."""

    tls: Tls = Tls()
    http: Http = Http()
    rate_limit: RateLimit = RateLimit()
    users: Mapping[str, str] = {}


_SECTIONS: dict[str, type[Any]] = {
    "tls_server_config": Tls,
    "http_server_config": Http,
    "rate_limit": RateLimit,
    "": _TopLevel,
}


def read(path: str) -> WebConfig:
    """Read the file. Raises SettingsError with file, line and what was expected."""
    values = load_file(path, _SECTIONS)
    values = {name: value for name, value in values.items() if value is not None}
    tls = build_section(Tls, "tls_server_config", _resolve_paths(values, os.path.dirname(path)))
    config = WebConfig(
        tls=tls,
        http=build_section(Http, "http_server_config", values),
        rate_limit=build_section(RateLimit, "rate_limit", values),
        users=build_section(_TopLevel, "", values).basic_auth_users or {},
    )
    try:
        check_private_key(path)  # the key may be part of this file
    except SecretFileError as error:
        raise SettingsError(str(error)) from error
    try:
        _check(config)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    return config


def _resolve_paths(values: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Relative paths are relative to the file."""
    return {
        name: os.path.join(directory, text(value)) if name.endswith("_file") and value else value
        for name, value in values.items()
    }


def _check(config: WebConfig) -> None:
    if config.rate_limit.interval and not config.rate_limit.burst:
        raise ValueError("rate_limit.burst: expected at least 1, or every request is refused")
    if config.tls.wanted:
        _check_tls(config.tls)


def _check_tls(tls: Tls) -> None:
    for name, inline, file in (("cert", tls.cert, tls.cert_file), ("key", tls.key, tls.key_file)):
        if bool(inline) == bool(file):
            raise ValueError(f"tls_server_config: expected one of {name} and {name}_file")
    if tls.client_ca and tls.client_ca_file:
        raise ValueError("tls_server_config: expected one of client_ca and client_ca_file")
    authority = tls.client_ca or tls.client_ca_file
    requires_certificate = tls.client_auth_type not in ("NoClientCert", "RequestClientCert")
    if authority and tls.client_auth_type == "NoClientCert":
        raise ValueError("tls_server_config: a client CA needs a client_auth_type")
    if requires_certificate and not authority:
        raise ValueError(
            f"tls_server_config: client_auth_type {tls.client_auth_type} needs client_ca or "
            "client_ca_file; unverified certificates are not accepted"
        )
    if tls.client_allowed_sans and not tls.client_auth_type.startswith("Require"):
        raise ValueError(
            "tls_server_config: client_allowed_sans needs client_auth_type "
            "RequireAndVerifyClientCert"
        )
    if tls.min_version > tls.max_version:
        raise ValueError("tls_server_config: min_version is above max_version")


def warn_unsupported(config: WebConfig) -> None:
    """Warn of keys that are not supported."""
    tls = config.tls
    ignored = [
        name
        for name, values in (
            ("cipher_suites", tls.cipher_suites),
            ("curve_preferences", tls.curve_preferences),
        )
        if values
    ]
    for name in ignored:
        log.warning("tls_server_config.%s: ignored; OpenSSL's default is used", name)
    if tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        log.warning(
            "tls_server_config.client_auth_type: %s is treated as RequireAndVerifyClientCert",
            tls.client_auth_type,
        )
