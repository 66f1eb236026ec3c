"""Families as text: the one module that knows the formats Prometheus reads.

Text format 0.0.4: Prometheus docs/instrumenting/exposition_formats.md.
OpenMetrics 1.0: prometheus/OpenMetrics specification/OpenMetrics.md.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice, zip_longest
from operator import is_
from typing import NamedTuple

from collectors.metric import Labels, Metric, MetricFamily, Sample


class ExpositionFormat(NamedTuple):
    """A text format, with what goes into Content-Type."""

    content_type: str
    openmetrics: bool


TEXT = ExpositionFormat("text/plain; version=0.0.4; charset=utf-8", openmetrics=False)
OPENMETRICS = ExpositionFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics=True
)

# How Python writes what the formats write otherwise.
_NUMBERS = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN", "True": "1", "False": "0"}


def render(families: Iterable[MetricFamily], format: ExpositionFormat = TEXT) -> bytes:
    """One exposition. Families of the same metric become one, at the place of the first."""
    return Exposition().render(families, format)


class Exposition:
    """Writes expositions; a sample that was in the last one keeps its text. Thread-safe."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}  # by the samples' name; an entry is only replaced

    def render(self, families: Iterable[MetricFamily], format: ExpositionFormat = TEXT) -> bytes:
        """One exposition. Families of the same metric become one, at the place of the first."""
        blocks: list[bytes] = []
        for metric, parts in _merged(families).values():
            blocks.append(_header(metric, format))
            for family in parts:
                if format.openmetrics and family.created:
                    blocks += _with_creation(family, family.created)
                else:
                    blocks.append(self._block(metric.name + family.suffix, family.samples))
        if format.openmetrics:
            blocks.append(b"# EOF\n")
        return b"".join(blocks)

    def _block(self, name: str, samples: Sequence[Sample]) -> bytes:
        before = self._written.get(name, _NOTHING_WRITTEN)
        if samples is before.samples or (
            len(samples) == len(before.samples) and all(map(is_, samples, before.samples))
        ):
            return before.block
        lines, written = (
            before.block,
            zip_longest(samples, before.samples, before.ends, chain((0,), before.ends)),
        )
        texts = [
            lines[begin:end] if sample is old else _line(name, sample)
            for sample, old, end, begin in islice(written, len(samples))
        ]
        block = b"".join(texts)
        ends = array("L", accumulate(map(len, texts)))
        self._written[name] = _Written(samples, ends, block)
        return block


class _Written(NamedTuple):
    """Samples of one name, where the line of each ends, and all lines."""

    samples: Sequence[Sample]
    ends: Sequence[int]
    block: bytes


_NOTHING_WRITTEN = _Written((), (), b"")


def _line(name: str, sample: Sample) -> bytes:
    labels, number = sample
    value = repr(number)
    value = _NUMBERS.get(value, value)
    text = f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
    # Labels are UTF-8 where `collectors.metric` rendered them; one that is not must not cost the
    # node all its metrics.
    return text.encode(errors="replace")


def _with_creation(family: MetricFamily, created: Mapping[Labels, float]) -> Iterator[bytes]:
    """Each counter, followed by the time at which it was 0 (OpenMetrics.md, "Counter")."""
    name = family.metric.name
    base = name.removesuffix("_total")
    for sample in family.samples:
        yield _line(name, sample)
        if (began := created.get(sample[0])) is not None:
            yield _line(f"{base}_created", (sample[0], began))


def _merged(families: Iterable[MetricFamily]) -> dict[str, tuple[Metric, list[MetricFamily]]]:
    merged: dict[str, tuple[Metric, list[MetricFamily]]] = {}
    for family in families:
        if family.samples:
            _, parts = merged.setdefault(family.metric.name, (family.metric, []))
            parts.append(family)
    return merged


@lru_cache(1000)
def _header(metric: Metric, format: ExpositionFormat) -> bytes:
    """HELP and TYPE. OpenMetrics names a counter's family without `_total` and escapes quotes."""
    name, text = metric.name, metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if format.openmetrics:
        text = text.replace('"', '\\"')
        if metric.type == "counter":
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.type}\n".encode()
