"""Families as text: the one module that knows the formats Prometheus reads.

Text format 0.0.4: Prometheus docs/instrumenting/exposition_formats.md.
OpenMetrics 1.0: prometheus/OpenMetrics specification/OpenMetrics.md.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batchjob_exporter.http.accept import accepted
from collectors.metric import Family, Labels, Metric


class Format(NamedTuple):
    """A text format, with what goes into Content-Type."""

    content_type: str
    openmetrics: bool


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", openmetrics=False)
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics=True)

# (media type, version the client asks for) -> what it gets; None: it does not say.
_OFFERS: dict[tuple[str, str | None], Format] = {
    ("application/openmetrics-text", "1.0.0"): OPENMETRICS,
    ("application/openmetrics-text", None): OPENMETRICS,
    ("text/plain", "0.0.4"): TEXT,
    ("text/plain", None): TEXT,
    ("text/*", None): TEXT,
    ("*/*", None): TEXT,
}

# How Python writes what the formats write otherwise.
_NUMBERS = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN", "True": "1", "False": "0"}


def negotiate(accept: str) -> Format:
    """The format for an Accept header: highest q first, then the header's own order (RFC 9110).

    A client that accepts neither gets the text format, which every scraper reads.
    """
    best, chosen = 0.0, TEXT
    for media, parameters, weight in accepted(accept):
        offer = _OFFERS.get((media, parameters.get("version")))
        if offer is not None and weight > best:
            best, chosen = weight, offer
    return chosen


def render(families: Iterable[Family], format: Format = TEXT) -> bytes:
    """One exposition. Families of the same metric become one, at the place of the first."""
    lines: list[str] = []
    for metric, parts in _merged(families).values():
        lines += _header(metric, format)
        for suffix, samples in parts:
            lines += _samples(metric.name + suffix, samples)
    if format.openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode()


_Parts = list[tuple[str, Sequence[tuple[Labels, float]]]]  # suffix, samples


def _merged(families: Iterable[Family]) -> dict[str, tuple[Metric, _Parts]]:
    merged: dict[str, tuple[Metric, _Parts]] = {}
    for metric, samples, suffix in families:
        if samples:
            merged.setdefault(metric.name, (metric, []))[1].append((suffix, samples))
    return merged


def _header(metric: Metric, format: Format) -> tuple[str, str]:
    """HELP and TYPE. OpenMetrics names a counter's family without `_total` and escapes quotes."""
    name, text = metric.name, metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if format.openmetrics:
        text = text.replace('"', '\\"')
        if metric.type == "counter":
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n", f"# TYPE {name} {metric.type}\n"


def _samples(name: str, samples: Sequence[tuple[Labels, float]]) -> list[str]:
    numbers = _NUMBERS
    return [
        f"{name}{{{labels}}} {numbers.get(value := repr(number), value)}\n"
        if labels
        else f"{name} {numbers.get(value := repr(number), value)}\n"
        for labels, number in samples
    ]
