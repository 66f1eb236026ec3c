"""Flags and configuration file of the poller.

All options are keys of the YAML file; those of the program as a whole are flags as well. Options of
one cluster are nested under it:

    db: {url: "sqlite:////var/lib/batchjob/jobs.db"}
    tsdb: {url: "http://prometheus:9090"}
    clusters:
      - name: alpha
        sources: {sacct: {timeout: 60s}, sacctmgr: {}}
        tsdb: {url: "http://prometheus-alpha:9090"}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from batchjob.runtime.settings import (
    LogOptions,
    SettingsError,
    build_section,
    load_file,
    option,
    options_of,
    suggest_nearest,
)
from batchjob.runtime.values import ListenAddress, address, duration, http_url
from batchjob.schedulers.accounting import AccountingSource, AssociationsSource
from batchjob.schedulers.registry import SOURCES
from batchjob.secret_files import SecretFileError, key_file, read_secret, secret_file
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.poller.messages.options import NO_MESSAGES, MessageOptions
from batchjob_stats_db.timeseries.prometheus_client import Endpoint


def _parse_header(value: Any) -> tuple[str, str]:
    name, colon, rest = str(value).partition(":")
    if colon and name.strip() and rest.strip() and "\n" not in rest:
        return name.strip(), rest.strip()
    raise ValueError(f"expected a header such as 'X-Scope-OrgID: hpc', got {value!r}")


@dataclass(frozen=True)
class DatabaseOptions:
    """Where job records are kept."""

    # fmt: off
    url: str = option("sqlite:////var/lib/batchjob/jobs.db",
        "Database URL: sqlite:///PATH or postgresql://USER@HOST/NAME.", metavar="URL")
    # fmt: on
    password_file: str = option("", "File with the password for PostgreSQL.", parse=secret_file)


@dataclass(frozen=True)
class PollerWebOptions:
    """Health and metrics of the poller itself."""

    # fmt: off
    listen_address: ListenAddress | None = option(None,
        "Address on which to serve /metrics, /-/healthy and /-/ready.", parse=address)
    # fmt: on


@dataclass(frozen=True)
class PollOptions:
    """When to ask the schedulers."""

    interval: float = option(60.0, "Interval between polls.", parse=duration)
    first: float = option(86400.0, "How far back the first poll reads.", parse=duration)
    # fmt: off
    reread: float = option(7 * 86400.0,
        "How far back ended jobs are read again each night, for records that arrived late or were "
        "edited; 0: never.", parse=duration)
    associations_interval: float = option(3600.0,
        "How often accounts and their members are read.", parse=duration)
    rollup_interval: float = option(300.0,
        "How often the sums of changed days are updated.", parse=duration)
    longest_pause: float = option(900.0,
        "Maximum pause after failures or slow answers.", parse=duration)
    # fmt: on


@dataclass(frozen=True)
class TsdbOptions:
    """Where the exporters' measurements are kept; no URL: usage is not measured."""

    url: str = option("", "URL of a server with the Prometheus HTTP API.", parse=http_url)
    username: str = option("", "User for basic authentication.")
    password_file: str = option("", "File with that user's password.", parse=secret_file)
    token_file: str = option("", "File with a bearer token.", parse=secret_file)
    ca_file: str = option("", "CA certificates (PEM) to trust instead of the system's.")
    cert_file: str = option("", "Client certificate (PEM).", parse=key_file)
    key_file: str = option("", "Key of the client certificate (PEM).", parse=key_file)
    # fmt: off
    header: tuple[tuple[str, str], ...] = option((),
        "Header to send with each request, such as 'X-Scope-OrgID: hpc'.", parse=_parse_header,
        repeat=True)
    timeout: float = option(60.0, "Maximum duration of a query.", parse=duration)
    scrape_interval: float = option(30.0, "How often the exporters are scraped.", parse=duration)
    linger: float = option(300.0,
        "Value of --collector.jobs.linger on the exporters.", parse=duration)
    retention: float = option(15 * 86400.0,
        "Retention time of the time series database.", parse=duration)
    live: float = option(60.0, "How often the running jobs are measured.", parse=duration)
    refresh: float = option(21600.0,
        "How often a running job is measured again from its start, for samples that arrived late.",
        parse=duration)
    # fmt: on

    def endpoint(self) -> Endpoint:
        """How to query the server; raises SettingsError if a secret's file cannot be read."""
        return Endpoint(
            self.url,
            username=self.username,
            password=read_secret_option("tsdb.password-file", self.password_file),
            token=read_secret_option("tsdb.token-file", self.token_file),
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            headers=dict(self.header),
            timeout_seconds=self.timeout,
            scrape_interval=self.scrape_interval,
        )

    def policy(self) -> UsagePolicy:
        """When a job is measured: once its last values are certain to be stored."""
        return UsagePolicy(
            settle_seconds=int(self.linger + 3 * self.scrape_interval),
            refresh_seconds=int(self.refresh),
            horizon_seconds=int(self.retention) if self.url else 0,
        )


@dataclass(frozen=True)
class RetentionOptions:
    """How long rows are kept; 0: forever."""

    # fmt: off
    jobs: float = option(0.0,
        "How long to keep job records, with usage, nodes and steps; 0: forever.", parse=duration)
    names: float = option(0.0,
        "How long to keep names, command lines and paths in job records, and batch scripts; 0: "
        "forever.", parse=duration)
    steps: float = option(0.0, "How long to keep the steps of jobs; 0: forever.", parse=duration)
    daily: float = option(0.0, "How long to keep daily sums; 0: forever.", parse=duration)
    quarantine: float = option(30 * 86400.0,
        "How long to keep rejected rows; 0: forever.", parse=duration)
    # fmt: on


@dataclass(frozen=True)
class BackupOptions:
    """Defaults of the command `backup`."""

    # fmt: off
    directory: str = option("",
        "Directory of backups; the poller exposes the age of the latest one.")
    # fmt: on
    keep: int = option(14, "Number of backups to keep; 0: all.")


SECTIONS: Mapping[str, type[Any]] = {
    "db": DatabaseOptions,
    "web": PollerWebOptions,
    "poll": PollOptions,
    "tsdb": TsdbOptions,
    "retention": RetentionOptions,
    "backup": BackupOptions,
    "messages": MessageOptions,
    "log": LogOptions,
}


class ClusterSettings(NamedTuple):
    """A cluster: the sources of its job records, and of its measurements."""

    name: str
    sources: tuple[AccountingSource, ...]
    associations: tuple[AssociationsSource, ...]
    tsdb: TsdbOptions
    samples: str = ""  # directory of sample files, used without a time series database


class PollerSettings(NamedTuple):
    """The settings of the program."""

    db: DatabaseOptions
    web: PollerWebOptions
    poll: PollOptions
    retention: RetentionOptions
    backup: BackupOptions
    log: LogOptions
    clusters: tuple[ClusterSettings, ...]
    messages: MessageOptions = NO_MESSAGES


def settings(flags: Mapping[str, Any], config_file: str) -> PollerSettings:
    given: dict[str, Any] = {}
    if config_file:
        given = load_file(config_file, SECTIONS, extra_keys=("clusters",))
    given |= flags
    sections = {section: build_section(cls, section, given) for section, cls in SECTIONS.items()}
    tsdb = sections.pop("tsdb")
    cluster_entries = given.get("clusters", [])
    if not isinstance(cluster_entries, list):
        raise SettingsError("clusters: expected a list of clusters")
    clusters = tuple(
        _parse_cluster(number, each, tsdb) for number, each in enumerate(cluster_entries)
    )
    names = [cluster.name for cluster in clusters]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"clusters: {name} must not be repeated")
    return PollerSettings(**sections, clusters=clusters)


def _parse_cluster(number: int, entry: Any, tsdb: TsdbOptions) -> ClusterSettings:
    where = f"clusters[{number}]"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise SettingsError(f"{where}: expected a mapping with the cluster's name")
    known = ("name", "sources", "tsdb", "samples")
    _reject_unknown_keys(where, entry, known)
    source_entries = entry.get("sources")
    if not isinstance(source_entries, dict) or not source_entries:
        raise SettingsError(f"{where}.sources: expected at least one of {', '.join(SOURCES)}")
    sources: list[AccountingSource] = []
    associations: list[AssociationsSource] = []
    for name, given in source_entries.items():
        if name not in SOURCES:
            hint = suggest_nearest(name, SOURCES)
            raise SettingsError(f"{where}.sources: unknown source {name}{hint}")
        module = SOURCES[name].load()
        built: Any = module.build(
            entry["name"], _parse_section(module.options, f"{where}.{name}", given)
        )
        (associations if SOURCES[name].has_associations else sources).append(built)
    own = _parse_section(TsdbOptions, f"{where}.tsdb", entry.get("tsdb"))
    changed = {each.name for each in fields(own) if getattr(own, each.name) != each.default}
    merged = replace(tsdb, **{name: getattr(own, name) for name in changed})
    samples = entry.get("samples", "")
    if not isinstance(samples, str):
        raise SettingsError(f"{where}.samples: expected a directory, got {samples!r}")
    return ClusterSettings(entry["name"], tuple(sources), tuple(associations), merged, samples)


def _parse_section(cls: type[Any], where: str, given: Any) -> Any:
    """An options dataclass from a mapping in the file, names with or without dashes."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise SettingsError(f"{where}: expected a mapping of option names to values")
    names = {each.name: each for each in options_of({where: cls})}
    prefixed = {f"{where}.{str(key).replace('_', '-')}": value for key, value in given.items()}
    _reject_unknown_keys(where, prefixed, names)
    return build_section(cls, where, prefixed)


def _reject_unknown_keys(where: str, given: Mapping[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise SettingsError(f"{where}: unknown key {key}{suggest_nearest(str(key), known)}")


def read_secret_option(name: str, path: str) -> str:
    """The content of a secret's file, "" if there is none; raises SettingsError."""
    if not path:
        return ""
    try:
        return read_secret(path).strip()
    except SecretFileError as error:
        raise SettingsError(f"{name}: {error}") from error


def problems(chosen: PollerSettings) -> Iterator[str]:
    """What is wrong with the settings beyond their format, one line each."""
    if not chosen.clusters:
        yield "clusters: expected at least one cluster with its sources"
    for cluster in chosen.clusters:
        try:
            cluster.tsdb.endpoint()
        except SettingsError as error:
            yield f"{cluster.name}: {error}"
    yield from chosen.messages.problems()
