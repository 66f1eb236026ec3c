"""Writes families as text; the only module that knows the formats of Prometheus.

Text format 0.0.4: Prometheus docs/instrumenting/exposition_formats.md. OpenMetrics 1.0:
prometheus/OpenMetrics specification/OpenMetrics.md.
"""

from collections.abc import Iterable
from functools import lru_cache

from collectors.metric import Labels, Metric, MetricColumn, MetricFamily

# The formats, by their Content-Type.
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Python's spelling of numbers -> the spelling of the formats.
_SPECIAL_NUMBERS = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def render(families: Iterable[MetricFamily], format: str = TEXT) -> bytearray:
    """One exposition. Families of the same metric are merged at the position of the first."""
    text = bytearray()
    for metric, parts in _group_by_metric(families).values():
        blocks = [_render_samples(family) for family in parts]
        if any(blocks):
            text += _header(metric, format == OPENMETRICS)
            for block in blocks:
                text += block
    if format == OPENMETRICS:
        text += b"# EOF\n"
    return text


def _render_samples(family: MetricFamily) -> bytes:
    """The lines of all samples.

    Labels are rendered as UTF-8; one that is not must not cost the node all its metrics.
    """
    name = family.metric.name + family.suffix
    if family.columns:
        text = "".join([_column_lines(name, column) for column in family.columns()])
    else:
        # `+` turns True into 1.
        text = "".join([f"{name}{{{labels}}} {+number!r}\n" for labels, number in family.samples])
    # Numbers in Python's spelling, or no labels.
    if "inf\n" in text or "nan\n" in text or "{} " in text:
        samples = family.samples or family.all_samples()
        text = "".join(_sample_line(name, labels, number) for labels, number in samples)
    return text.encode(errors="replace")


def _column_lines(name: str, column: MetricColumn) -> str:
    begin, shared = f"{name}{{", column.shared_labels
    end = f",{shared}}} " if shared else "} "
    return "".join(
        [
            f"{begin}{labels}{end}{+number!r}\n"
            for labels, number in zip(column.labels, column.values, strict=True)
        ]
    )


def _sample_line(name: str, labels: Labels, number: float) -> str:
    value = repr(+number)
    value = _SPECIAL_NUMBERS.get(value, value)
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def _group_by_metric(
    families: Iterable[MetricFamily],
) -> dict[str, tuple[Metric, list[MetricFamily]]]:
    merged: dict[str, tuple[Metric, list[MetricFamily]]] = {}
    for family in families:
        _, parts = merged.setdefault(family.metric.name, (family.metric, []))
        parts.append(family)
    return merged


@lru_cache(1000)
def _header(metric: Metric, openmetrics: bool) -> bytes:
    """HELP and TYPE. OpenMetrics names a counter's family without `_total` and escapes quotes."""
    name, text = metric.name, metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        text = text.replace('"', '\\"')
        if metric.type == "counter":
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.type}\n".encode()
