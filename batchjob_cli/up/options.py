"""Options of `batchjob up`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from batchjob.judgements import SiteThresholds
from batchjob.local_runs import directory as data
from batchjob.quantities.job import DEFAULT_METRIC_GROUPS, METRIC_GROUPS
from batchjob.runtime.settings import (
    LogOptions,
    Parser,
    add_flags,
    build_section,
    load_file,
    option,
    parse_flags,
)
from batchjob.runtime.values import ListenAddress, address, duration, http_url, one_of, with_metavar
from batchjob_stats_db.samples import recorder
from batchjob_stats_server.options import CertificateOptions, TlsOptions


@with_metavar("HOST:PORT")
def _parse_host_and_port(value: Any) -> ListenAddress:
    if (parsed := address(value)).host:
        return parsed
    raise ValueError(f"expected HOST:PORT, got {value!r}")


@with_metavar("ADDRESS")
def _parse_exporter_address(value: Any) -> str:
    plain = not value or str(value).startswith("unix:/")
    return str(value) if plain else str(_parse_host_and_port(value))


_OPTIONAL_GROUPS = tuple(group for group in METRIC_GROUPS if group not in DEFAULT_METRIC_GROUPS)


@dataclass(frozen=True)
class UpOptions:
    """Options that apply to all parts of `up`."""

    data: str = option(
        "",
        f"Data directory; default: ${data.VARIABLE} or ~/.local/state/batchjob.",
        metavar="DIRECTORY",
    )
    demo: bool = option(
        False, "Start a few jobs of different kinds, and show a generated cluster beside them."
    )
    interval: float = option(
        3.0, "Interval between samples of this machine's own runs.", parse=duration
    )
    scheduler_interval: float = option(
        30.0, "Interval between questions to the scheduler about its jobs.", parse=duration
    )
    metrics: tuple[str, ...] = option(
        (),
        "Group of metrics to record in addition to the default ones: "
        f"{', '.join(_OPTIONAL_GROUPS)}; or all.",
        parse=one_of(*_OPTIONAL_GROUPS, "all"), repeat=True, metavar="GROUP",
    )  # fmt: skip
    listen_address: ListenAddress = option(
        ListenAddress("127.0.0.1", 10912),
        "Address of the web pages and the API; if only the default's port is taken, the next "
        "free one.",
        parse=_parse_host_and_port,
    )
    exporter_address: str = option(
        "",
        "Address on which Prometheus may scrape this machine with the token, "
        "HOST:PORT or unix:/PATH; default: none.",
        parse=_parse_exporter_address,
    )


@dataclass(frozen=True)
class UpTsdbOptions:
    """Where measurements are kept, if not as samples in the data directory."""

    url: str = option(
        "",
        "URL of a server with the Prometheus HTTP API that scrapes this machine.",
        parse=http_url,
    )


@dataclass(frozen=True)
class RunsOptions:
    """What may be done with runs."""

    remote: bool = option(
        False,
        "Let admins start, stop and delete runs over the API, with the rights of the "
        "user who started this program.",
    )


class UpSettings(NamedTuple):
    """All settings of the command."""

    up: UpOptions
    runs: RunsOptions
    web: TlsOptions
    auth: CertificateOptions
    samples: recorder.RecorderOptions
    tsdb: UpTsdbOptions
    threshold: SiteThresholds
    log: LogOptions
    any_port: bool = False  # the address is the default, which others on this machine may use


SECTIONS: Mapping[str, type[Any]] = {
    "" if name == "up" else name: cls
    for name, cls in get_type_hints(UpSettings).items()
    if name != "any_port"
}


def settings(arguments: list[str]) -> UpSettings:
    """Settings from the command line, which overrides a file; raises SettingsError."""
    parser = Parser(
        prog="batchjob up",
        description="Runs exporter, poller, server and web pages on this machine, in one process.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config.file", dest="config.file", default="", metavar="FILE",
        help="YAML file with the same names as the flags; flags take precedence",
    )  # fmt: skip
    add_flags(parser, SECTIONS)
    flags = parse_flags(parser, arguments)
    path = flags.pop("config.file")
    given = (load_file(path, SECTIONS) if path else {}) | flags
    sections = (build_section(cls, section, given) for section, cls in SECTIONS.items())
    return UpSettings(*sections)._replace(any_port="listen-address" not in given)
