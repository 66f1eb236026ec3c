"""What `batchjob up` is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchjob import data
from batchjob.settings import LogOptions, Parser, add_flags, make, option, parse_flags
from batchjob.values import Address, address, boolean, called, duration, http_url, text
from batchjob_cli import recorder


@called("HOST:PORT")
def _with_host(value: Any) -> Address:
    if (parsed := address(value)).host:
        return parsed
    raise ValueError(f"expected HOST:PORT, got {value!r}")


@dataclass(frozen=True)
class UpOptions:
    """Of the whole."""

    data: str = option(
        "",
        f"Data directory, ${data.VARIABLE} or ~/.local/state/batchjob unless it is named.",
        parse=text,
        metavar="DIRECTORY",
    )
    demo: bool = option(
        False, "Start a few jobs of different kinds, to have something to see.", parse=boolean
    )
    interval: float = option(
        3.0, "Time between two looks at this machine's own runs.", parse=duration
    )
    listen_address: Address = option(
        Address("127.0.0.1", 10912), "Where pages and API are.", parse=_with_host
    )
    exporter_address: Address = option(
        Address("127.0.0.1", 10910), "Where Prometheus may scrape this machine.", parse=_with_host
    )


@dataclass(frozen=True)
class DbOptions:
    """Where records are kept."""

    url: str = option(
        "",
        "The database, jobs.db in the data directory unless it is named: sqlite:///PATH or "
        "postgresql://USER@HOST/NAME.",
        parse=text,
        metavar="URL",
    )
    password_file: str = option("", "File with the password for PostgreSQL.", parse=text)


@dataclass(frozen=True)
class TsdbOptions:
    """Where measurements are kept, if not as samples in the data directory."""

    url: str = option(
        "", "A server with the Prometheus HTTP API that scrapes this machine.", parse=http_url
    )


SECTIONS: Mapping[str, type[Any]] = {
    "": UpOptions,
    "samples": recorder.Options,
    "db": DbOptions,
    "tsdb": TsdbOptions,
    "log": LogOptions,
}


class Settings(NamedTuple):
    """All that the command is told."""

    up: UpOptions
    samples: recorder.Options
    db: DbOptions
    tsdb: TsdbOptions
    log: LogOptions


def settings(arguments: list[str]) -> Settings:
    """Settings from the command line; raises SettingsError."""
    parser = Parser(
        prog="batchjob up",
        description="Runs exporter, poller, server and pages on this machine, in one process.",
        allow_abbrev=False,
    )
    add_flags(parser, SECTIONS)
    # A terminal is for what one should know; log lines say the rest when they are asked for.
    given = {"log.level": "warning"} | parse_flags(parser, arguments)
    return Settings(*(make(cls, section, given) for section, cls in SECTIONS.items()))
