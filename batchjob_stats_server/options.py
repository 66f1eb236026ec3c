"""Flags and configuration file of the server.

db: {url: "sqlite:////var/lib/batchjob/jobs.db"}
web: {listen-address: "127.0.0.1:10912"}
tsdb: {url: "http://prometheus:9090"}
auth:
  trusted-peer: [192.0.2.10]
  secret-file: /etc/batchjob/grafana.secret
  admin: [root]
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit

from batchjob.judgements import SiteThresholds
from batchjob.runtime.settings import LogOptions, SettingsError, build_section, load_file, option
from batchjob.runtime.values import (
    ListenAddress,
    Network,
    address,
    at_least_one,
    duration,
    http_url,
    network,
    number,
    one_of,
    text,
    with_metavar,
)
from batchjob.secret_files import secret_file
from batchjob_stats_db.database.access import LEVELS
from batchjob_stats_db.poller.options import DatabaseOptions, TsdbOptions, read_secret_option
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_server.report.log_links import parse_log_address
from collectors.emissions.site_factors import EmissionsOptions

_SHORTEST_SECRET = 16
SECRET_HEADER = "X-Batchjob-Secret"  # noqa: S105 (a name)
"""The header in which a trusted peer sends its secret."""


@with_metavar("NAME")
def _header_name(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9-]+", value):
        return value
    raise ValueError(f"expected the name of a header, got {value!r}")


def _pue(value: Any) -> float:
    if (parsed := number(value)) == 0 or parsed >= 1:
        return parsed
    raise ValueError(f"expected a number of at least 1, or 0 for none, got {value!r}")


class AccountGroup(NamedTuple):
    """A group, and the account whose jobs its members may see."""

    group: str
    cluster: str
    account: str

    def __str__(self) -> str:
        return f"{self.group}={self.cluster}/{self.account}"


@with_metavar("GROUP=CLUSTER/ACCOUNT")
def _account_group(value: Any) -> AccountGroup:
    match = re.fullmatch(r"([^=]+)=([^/]+)/(.+)", str(value))
    if match:
        return AccountGroup(*match.groups())
    raise ValueError(f"expected GROUP=CLUSTER/ACCOUNT, got {value!r}")


@with_metavar("URL")
def _provider(value: Any) -> str:
    url = http_url(value)
    if url.startswith("https:") or urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
        return url
    raise ValueError(f"expected https://HOST, got {value!r}")


@with_metavar("ADDRESS")
def _mail_address(value: Any) -> str:
    if value == "" or "{user}" in str(value):
        return str(value)
    raise ValueError(f"expected {{user}} in it, as in {{user}}@example.org, got {value!r}")


@with_metavar("ORIGIN")
def _origin(value: Any) -> str:
    if re.fullmatch(r"https?://[A-Za-z0-9.*-]+(:[0-9]+)?", str(value)):
        return str(value)
    raise ValueError(f"expected an origin such as https://ondemand.example.org, got {value!r}")


def _several(text_of_help: str, parse: Callable[[Any], Any] = text, **more: Any) -> Any:
    """An option that may be given several times."""
    return option((), text_of_help, parse=parse, repeat=True, **more)


@dataclass(frozen=True)
class TlsOptions:
    """How pages and API are reached from elsewhere."""

    tls_cert_file: str = option(
        "", "Certificate chain (PEM); when set, only TLS connections are accepted."
    )
    tls_key_file: str = option("", "Key of the certificate (PEM).")
    allowed_host: tuple[str, ...] = _several(
        "Accepted host name or address in requests (Host header); default: all, or on loopback "
        "only the server's own.",
        metavar="NAME",
    )


@dataclass(frozen=True)
class ServerWebOptions(TlsOptions):
    """Address, TLS, threads and time-outs of the web server."""

    listen_address: ListenAddress = option(
        ListenAddress("127.0.0.1", 10912), "Address to listen on.", parse=address
    )
    frame_ancestors: tuple[str, ...] = _several(
        "Origin whose pages may embed pages of this server in a frame, such as "
        "https://ondemand.example.org.",
        _origin,
    )
    threads: int = option(
        8,
        "Maximum number of requests answered at the same time, each with a database "
        "connection; at most half of them may be expensive API requests, and with "
        "SQLite at most one more than there are CPUs.",
        parse=at_least_one,
    )
    query_timeout: float = option(30.0, "Maximum duration of a database query.", parse=duration)
    stop_timeout: float = option(
        20.0,
        "How long requests in progress may take to finish when the server stops.",
        parse=duration,
    )
    metrics_from: tuple[Network, ...] = option(
        tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128"))),
        "Address or network that may read /metrics without a token.",
        parse=network,
        repeat=True,
    )


@dataclass(frozen=True)
class CertificateOptions:
    """Whose client certificates are believed."""

    client_ca_file: str = option(
        "",
        "CA certificate (PEM) for client certificates; the subject gives the user "
        "(CN) and the role (OU admin or viewer).",
    )
    client_crl_file: str = option(
        "", "Certificate revocation list of that CA (PEM); read again when it changes."
    )


@dataclass(frozen=True)
class AuthOptions(CertificateOptions):
    """How callers are authenticated, and who may see more than their own jobs."""

    trusted_peer: tuple[Network, ...] = _several(
        "Address of a Grafana server or proxy that is trusted to name the user.", network
    )
    secret_file: str = option(
        "",
        "File with the secret that a trusted peer sends with each request, in X-Batchjob-Secret.",
        parse=secret_file,
    )
    user_header: str = option(
        "X-Grafana-User", "Header that contains the user's name.", parse=_header_name
    )
    cluster: tuple[str, ...] = _several(
        "Cluster on which the name from a trusted peer or the OpenID provider is a login name; "
        "default: all clusters.",
        metavar="NAME",
    )
    viewer: tuple[str, ...] = _several(
        "User named by a trusted peer or the OpenID provider who may see all jobs."
    )
    admin: tuple[str, ...] = _several(
        "User named by a trusted peer or the OpenID provider who may see all jobs and manage "
        "tokens."
    )
    viewer_group: tuple[str, ...] = _several("Group whose members may see all jobs.")
    admin_group: tuple[str, ...] = _several(
        "Group whose members may see all jobs and manage tokens."
    )
    account_group: tuple[AccountGroup, ...] = _several(
        "Group whose members may see all jobs of an account, as its coordinators do.",
        _account_group,
    )
    slurm_admins: str = option(
        "none",
        "Minimum AdminLevel in Slurm's accounting that lets a user see all jobs of the cluster.",
        parse=one_of("none", *reversed(LEVELS)),
    )
    cluster_totals: str = option(
        "everybody",
        "Who may see the load and wait times of each partition, without names: everybody, or "
        "only users who may see all jobs of the cluster (viewers).",
        parse=one_of("everybody", "viewers"),
    )
    longest_token: float = option(
        365 * 86400.0, "Maximum lifetime of a token created through the API.", parse=duration
    )


@dataclass(frozen=True)
class OidcOptions:
    """Log-in through the site's OpenID provider."""

    issuer: str = option(
        "",
        "Issuer URL of the OpenID provider; its configuration is at "
        "/.well-known/openid-configuration below it.",
        parse=_provider,
    )
    client_id: str = option("", "Client ID of this server at the provider.")
    client_secret_file: str = option(
        "", "File with the client secret; without one, the client is public.", parse=secret_file
    )
    server_url: str = option(
        "",
        "URL of this server as browsers see it; register URL/oidc/callback as "
        "redirect URI at the provider.",
        parse=http_url,
    )
    name: str = option("the site's log-in", "Name of the provider on the log-in page.")
    scope: tuple[str, ...] = option(
        ("openid", "profile"), "Scope to request.", repeat=True, metavar="NAME"
    )
    user_claim: str = option(
        "preferred_username", "Claim that contains the login name.", metavar="NAME"
    )
    groups_claim: str = option("groups", "Claim that contains the group names.", metavar="NAME")
    session: float = option(10 * 3600.0, "Lifetime of a session.", parse=duration)
    ca_file: str = option("", "CA certificates to trust for the provider (PEM).")


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests and connections."""

    user_rate: float = option(
        20.0,
        "Maximum rate of requests per user, per second, in bursts of ten times as many; 0: no"
        " limit.",
    )
    peer_rate: float = option(
        50.0,
        "Maximum rate of requests per address, per second, in bursts of ten times as many; trusted"
        " peers are exempt; 0: no limit.",
    )
    connections: int = option(
        1000,
        "Maximum number of connections; when it is reached, the connection that has "
        "waited longest for its client is closed.",
        parse=at_least_one,
    )
    peer_connections: int = option(
        100,
        "Maximum number of connections per address; trusted peers are exempt.",
        parse=at_least_one,
    )


@dataclass(frozen=True)
class GateOptions:
    """Limits on users' PromQL queries."""

    concurrent: int = option(
        4,
        "Maximum number of simultaneous queries to the time series database, of which one user"
        " has half.",
        parse=at_least_one,
    )
    timeout: float = option(30.0, "Maximum duration of a query.", parse=duration)
    answer_bytes: int = option(32 << 20, "Maximum size of an answer.", parse=at_least_one)
    series: int = option(
        10_000,
        "Maximum number of series in an answer, where the database supports a limit.",
        parse=at_least_one,
    )


@dataclass(frozen=True)
class ReportOptions:
    """Contents of job reports."""

    rules_file: str = option("", "YAML file with advice rules to add, change or disable.")
    pue: float = option(
        0.0,
        "Power usage effectiveness of the site (yearly mean); when set, reports also "
        "show energy and emissions multiplied by it.",
        parse=_pue,
        metavar="RATIO",
    )
    help_url: str = option(
        "",
        "URL of the site's own help on advice, linked beside each; {rule} in it is replaced"
        " by the name of the rule.",
        parse=http_url,
    )
    mail_address: str = option(
        "",
        "Address of a user, such as {user}@example.org, for links on the admin page; {user} is "
        "replaced by the login.",
        parse=_mail_address,
    )


@dataclass(frozen=True)
class SamplesOptions:
    """Sample files, which `batchjob up` records."""

    directory: str = option(
        "", "Directory of sample files; used for measurements when tsdb.url is not set."
    )
    streams: int = option(
        32,
        "Maximum number of open streams of samples, of which one user has a quarter.",
        parse=at_least_one,
    )


@dataclass(frozen=True)
class GrafanaOptions:
    """The Grafana server to which pages link for all measurements of a job or node."""

    url: str = option(
        "",
        "URL of a Grafana server with batchjob's dashboards, as browsers see it.",
        parse=http_url,
    )
    job: str = option("batchjob-job", "UID of the dashboard for a job.")
    node: str = option("batchjob-node", "UID of the dashboard for a node.")


@dataclass(frozen=True)
class LogsOptions:
    """The log database to which jobs link for the lines of their nodes."""

    url: str = option(
        "",
        "Address that shows the lines of nodes, in which {cluster}, {node}, {job}, {user}, {start},"
        " {end} (RFC 3339), {start_ms} and {end_ms} are replaced; {node} are the job's nodes,"
        " separated by |.",
        parse=parse_log_address,
    )


def gate_endpoint(tsdb: TsdbOptions, gate: GateOptions) -> Endpoint:
    """How the gate queries the database; raises SettingsError."""
    return replace(tsdb.endpoint(), answer_bytes=gate.answer_bytes)


class ServerSettings(NamedTuple):
    """The settings of the program."""

    db: DatabaseOptions
    web: ServerWebOptions = ServerWebOptions()
    auth: AuthOptions = AuthOptions()
    oidc: OidcOptions = OidcOptions()
    limit: LimitOptions = LimitOptions()
    tsdb: TsdbOptions = TsdbOptions()
    gate: GateOptions = GateOptions()
    report: ReportOptions = ReportOptions()
    samples: SamplesOptions = SamplesOptions()
    grafana: GrafanaOptions = GrafanaOptions()
    logs: LogsOptions = LogsOptions()
    threshold: SiteThresholds = SiteThresholds()
    emissions: EmissionsOptions = EmissionsOptions()
    log: LogOptions = LogOptions()


SECTIONS: Mapping[str, type[Any]] = get_type_hints(ServerSettings)


def settings(flags: Mapping[str, Any], config_file: str) -> ServerSettings:
    values = load_file(config_file, SECTIONS) if config_file else {}
    values |= flags
    sections = {section: build_section(cls, section, values) for section, cls in SECTIONS.items()}
    return ServerSettings(**sections)


def setting_errors(chosen: ServerSettings) -> Iterator[str]:
    """Errors in the settings other than their format, one line each."""
    web, auth = chosen.web, chosen.auth
    if bool(web.tls_cert_file) != bool(web.tls_key_file):
        yield "web.tls-cert-file, web.tls-key-file: expected both or neither"
    if auth.client_ca_file and not web.tls_cert_file:
        yield "web.tls-cert-file: expected with auth.client-ca-file"
    if auth.client_crl_file and not auth.client_ca_file:
        yield "auth.client-ca-file: expected with auth.client-crl-file"
    if auth.trusted_peer and not auth.secret_file:
        yield "auth.secret-file: expected with auth.trusted-peer"
    if auth.secret_file:
        try:
            proxy_secret(auth)
        except SettingsError as error:
            yield str(error)
    oidc = chosen.oidc
    if oidc.issuer and not (oidc.client_id and oidc.server_url):
        yield "oidc.client-id, oidc.server-url: expected with oidc.issuer"
    if oidc.issuer and "openid" not in oidc.scope:
        yield "oidc.scope: expected openid among them"
    if auth.user_header.lower() == SECRET_HEADER.lower():
        yield f"auth.user-header: expected another header than {SECRET_HEADER}, of the secret"


def proxy_secret(auth: AuthOptions) -> str:
    """The secret of trusted peers, "" if there is none; raises SettingsError."""
    secret = read_secret_option("auth.secret-file", auth.secret_file)
    if auth.secret_file and len(secret) < _SHORTEST_SECRET:
        raise SettingsError(
            f"auth.secret-file: {auth.secret_file}: expected at least {_SHORTEST_SECRET} characters"
        )
    return secret
