"""Flags and configuration file of the exporter, from the options of its parts."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

from batchjob.runtime import settings
from batchjob.runtime.values import Network, duration, network
from batchjob_exporter.self_metrics import version_text
from batchjob_exporter.web.addresses import listen_address
from collectors.collector import COLLECTORS, CollectorEntry
from collectors.host import Host


def _url_path(value: Any) -> str:
    if isinstance(value, str) and value.startswith("/") and not set(value) & set(" ?#\r\n"):
        return value
    raise ValueError(f"expected a path such as /metrics, got {value!r}")


@dataclass(frozen=True)
class ExporterWebOptions:
    # fmt: off
    listen_address: tuple[str, ...] = settings.option((":10910",),
        "Address to listen on: :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH; may be repeated.",
        parse=listen_address, repeat=True)
    telemetry_path: str = settings.option("/metrics",
        "Path under which metrics are served.", parse=_url_path, metavar="PATH")
    config_file: str = settings.option("",
        "File with TLS and authentication, in the format of Prometheus' exporters.",
        metavar="FILE", key="config.file")
    max_requests: int = settings.option(40,
        "Maximum number of simultaneous requests in addition to one per address; others get status "
        "503; 0: no limit.")
    allow_from: tuple[Network, ...] = settings.option((),
        "Network from which clients may connect; may be repeated; default: all.", parse=network,
        repeat=True)
    # fmt: on
    disable_exporter_metrics: bool = settings.option(
        False, "Exclude metrics about the exporter itself."
    )


_switches = {"disable_defaults": (False, "Run only collectors that are enabled by name.")}
_switches |= {each.name: (each.enabled, each.description) for each in COLLECTORS}
CollectorSwitches = make_dataclass(
    "CollectorSwitches", [(name, bool, settings.option(*each)) for name, each in _switches.items()]
)

SECTIONS: dict[str, type[Any]] = {
    "collector": CollectorSwitches,
    "web": ExporterWebOptions,
    "path": Host,
    "log": settings.LogOptions,
}


class ExporterSettings(NamedTuple):
    action: str  # serve, once or check
    once_wait: float
    web: ExporterWebOptions
    host: Host
    log: settings.LogOptions
    collectors: tuple[tuple[CollectorEntry, Any], ...]  # those to be run, and their options


def sections() -> dict[str, type[Any]]:
    """Options of the exporter and of all collectors, by the prefix of their flags."""
    return SECTIONS | {_section_name(entry): entry.load().options for entry in COLLECTORS}


def _section_name(entry: CollectorEntry) -> str:
    return f"collector.{entry.name}"


def parser() -> argparse.ArgumentParser:
    command_line = settings.Parser(
        prog="batchjob_exporter",
        description="Serves metrics of the batch jobs on this node to Prometheus.",
        allow_abbrev=False,
        add_help=False,
    )
    add = command_line.add_argument
    add("-h", "--help", action="help", help="Print all flags and exit.")
    add("--version", action="version", version=version_text(), help="Print the version and exit.")
    text = "YAML file with the same names as the flags; flags take precedence."
    add("--config.file", metavar="FILE", default="", help=text)
    text = "Print one exposition to standard output and exit."
    add("--once", action="store_true", help=text)
    text = "With --once: how long to wait for the first values of slow collectors. (default: 0s)."
    add("--once.wait", type=duration, default=0.0, help=text)
    text = "Check flags and configuration files, report errors, and exit."
    add("--check", action="store_true", help=text)
    settings.add_flags(command_line, sections())
    return command_line


def parse_settings(arguments: list[str]) -> ExporterSettings:
    """Settings from the command line and the file it names. Raises SettingsError."""
    given = settings.parse_flags(parser(), arguments)
    path = given["config.file"]
    values = (settings.load_file(path, sections()) if path else {}) | given
    return ExporterSettings(
        action="check" if given["check"] else "once" if given["once"] else "serve",
        once_wait=given["once.wait"],
        web=settings.build_section(ExporterWebOptions, "web", values),
        host=settings.build_section(Host, "path", values),
        log=settings.build_section(settings.LogOptions, "log", values),
        collectors=tuple(_enabled_collectors(values)),
    )


def _enabled_collectors(values: Mapping[str, Any]) -> list[tuple[CollectorEntry, Any]]:
    """The enabled collectors; options of disabled ones are checked as well."""
    switches = vars(settings.build_section(CollectorSwitches, "collector", values))
    enabled_collectors = []
    for entry in COLLECTORS:
        options = settings.build_section(entry.load().options, _section_name(entry), values)
        by_name = _section_name(entry) in values or not switches["disable_defaults"]
        if by_name and switches[entry.name]:
            enabled_collectors.append((entry, options))
    return enabled_collectors
