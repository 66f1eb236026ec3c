"""The file of `--web.config.file`, in the format of all Prometheus exporters.

Source: prometheus/exporter-toolkit docs/web-configuration.md. Keys that are not supported are
accepted with a warning, so that a site can use its existing file.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from batchjob.runtime.settings import SettingsError, build_section, load_file, option
from batchjob.runtime.values import one_of, text

if TYPE_CHECKING:  # imported on use: each needs memory that few nodes have to spend
    import ssl

    from batchjob_exporter.web.passwords import Passwords

log = logging.getLogger(__name__)

_BCRYPT_HASH = re.compile(r"\$2[aby]?\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
# Keys of the format that are accepted and have no effect.
_IGNORED_KEYS = (
    "tls_server_config.cipher_suites", "tls_server_config.curve_preferences",
    "http_server_config.http2", "http_server_config.headers",
    "rate_limit.interval", "rate_limit.burst",
)  # fmt: skip


def _parse_users(value: Any) -> Mapping[str, str]:
    is_mapping = isinstance(value, dict)
    if not is_mapping or not all(isinstance(x, str) for pair in value.items() for x in pair):
        raise ValueError("expected a mapping of names to text")
    for name, hashed in value.items():
        if ":" in name:
            raise ValueError(f"user {name!r}: a name cannot hold a colon")
        if not _BCRYPT_HASH.fullmatch(hashed):
            raise ValueError(
                f"user {name!r}: expected a bcrypt hash ($2y$10$...), as `htpasswd -nB` makes it"
            )
    return dict(value)


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
    prefer_server_cipher_suites: bool = option(True,
        "Whether the server's order of cipher suites is preferred.",
        key="prefer_server_cipher_suites")
    # fmt: on

    @property
    def wanted(self) -> bool:
        return self != Tls()

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.cert_file, self.key_file, self.client_ca_file)))


@dataclass(frozen=True)
class _TopLevel:
    # fmt: off
    basic_auth_users: Mapping[str, str] = option(None, "Names and bcrypt hashes.",
        parse=_parse_users, key="basic_auth_users")
    # fmt: on


class WebConfig(NamedTuple):
    """The checked contents of the file, then those of the files it names, once they are read."""

    tls: Tls = Tls()
    users: Mapping[str, str] = {}
    ignored_keys: tuple[str, ...] = ()
    context: "ssl.SSLContext | None" = None
    passwords: "Passwords | None" = None


_SECTIONS: dict[str, type[Any]] = {"tls_server_config": Tls, "": _TopLevel}


def read(path: str) -> WebConfig:
    """Read the file. Raises SettingsError with file, line and what was expected."""
    values = load_file(path, _SECTIONS, _IGNORED_KEYS)
    values = {name: value for name, value in values.items() if value is not None}
    tls = build_section(Tls, "tls_server_config", _resolve_paths(values, os.path.dirname(path)))
    config = WebConfig(
        tls=tls,
        users=build_section(_TopLevel, "", values).basic_auth_users or {},
        ignored_keys=tuple(name for name in _IGNORED_KEYS if name in values),
    )
    try:
        if config.tls.wanted:
            _check_tls(config.tls)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    return config


def _resolve_paths(values: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Relative paths are relative to the file."""
    return {
        name: os.path.join(directory, text(value)) if name.endswith("_file") and value else value
        for name, value in values.items()
    }


def _check_tls(tls: Tls) -> None:
    for name, file in (("cert_file", tls.cert_file), ("key_file", tls.key_file)):
        if not file:
            raise ValueError(f"tls_server_config: expected {name}")
    requires_certificate = tls.client_auth_type not in ("NoClientCert", "RequestClientCert")
    if tls.client_ca_file and tls.client_auth_type == "NoClientCert":
        raise ValueError("tls_server_config: a client CA needs a client_auth_type")
    if requires_certificate and not tls.client_ca_file:
        raise ValueError(
            f"tls_server_config: client_auth_type {tls.client_auth_type} needs client_ca_file; "
            "unverified certificates are not accepted"
        )
    if tls.client_allowed_sans and not tls.client_auth_type.startswith("Require"):
        raise ValueError(
            "tls_server_config: client_allowed_sans needs client_auth_type "
            "RequireAndVerifyClientCert"
        )
    if tls.min_version > tls.max_version:
        raise ValueError("tls_server_config: min_version is above max_version")


def warn_unsupported(config: WebConfig) -> None:
    for name in config.ignored_keys:
        log.warning("%s: ignored", name)
    tls = config.tls
    if tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        log.warning(
            "tls_server_config.client_auth_type: %s is treated as RequireAndVerifyClientCert",
            tls.client_auth_type,
        )
