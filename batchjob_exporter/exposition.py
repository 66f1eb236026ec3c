"""Families as text: the one module that knows the formats Prometheus reads.

Text format 0.0.4: Prometheus docs/instrumenting/exposition_formats.md.
OpenMetrics 1.0: prometheus/OpenMetrics specification/OpenMetrics.md.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice, zip_longest
from operator import is_
from typing import NamedTuple

from batchjob_exporter.http.accept import accepted
from collectors.metric import Family, Metric, Sample


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
    return Exposition().render(families, format)


class Exposition:
    """Writes expositions; a sample that was in the last one keeps its text. Thread-safe."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}  # by the samples' name; an entry is only replaced

    def render(self, families: Iterable[Family], format: Format = TEXT) -> bytes:
        """One exposition. Families of the same metric become one, at the place of the first."""
        texts: list[str] = []
        for metric, parts in _merged(families).values():
            texts += _header(metric, format)
            for name, samples in parts:
                texts.append(self._block(name, samples))
        if format.openmetrics:
            texts.append("# EOF\n")
        return "".join(texts).encode()

    def _block(self, name: str, samples: Sequence[Sample]) -> str:
        before = self._written.get(name, _NOTHING_WRITTEN)
        if samples is before.samples or (
            len(samples) == len(before.samples) and all(map(is_, samples, before.samples))
        ):
            return before.block
        kept = zip_longest(samples, before.samples, before.texts)
        texts = [
            text if sample is old else _text(sample)
            for sample, old, text in islice(kept, len(samples))
        ]
        block = name + name.join(texts)
        self._written[name] = _Written(samples, texts, block)
        return block


class _Written(NamedTuple):
    """Samples of one name, the text of each behind the name (labels, value, line feed), and all."""

    samples: Sequence[Sample]
    texts: Sequence[str]
    block: str


_NOTHING_WRITTEN = _Written((), (), "")


def _text(sample: Sample) -> str:
    labels, number = sample
    value = repr(number)
    value = _NUMBERS.get(value, value)
    return f"{{{labels}}} {value}\n" if labels else f" {value}\n"


_Parts = list[tuple[str, Sequence[Sample]]]  # name with suffix, samples


def _merged(families: Iterable[Family]) -> dict[str, tuple[Metric, _Parts]]:
    merged: dict[str, tuple[Metric, _Parts]] = {}
    for metric, samples, suffix, _ in families:
        if samples:
            _, parts = merged.setdefault(metric.name, (metric, []))
            parts.append((metric.name + suffix, samples))
    return merged


@lru_cache(1000)
def _header(metric: Metric, format: Format) -> tuple[str, str]:
    """HELP and TYPE. OpenMetrics names a counter's family without `_total` and escapes quotes."""
    name, text = metric.name, metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if format.openmetrics:
        text = text.replace('"', '\\"')
        if metric.type == "counter":
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n", f"# TYPE {name} {metric.type}\n"
