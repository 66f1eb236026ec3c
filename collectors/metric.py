"""Metrics, labels and families as plain data; `batchjob_exporter.exposition` writes them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, NewType

from batchjob.quantities.quantity import ExportedMetric
from batchjob.runtime.formatting import replace_non_utf8

Labels = NewType("Labels", str)
"""Label pairs in the text format, without the braces; rendered once and kept by their owner."""

NO_LABELS = Labels("")

Sample = tuple[Labels, float]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    """A family's name, type and definition; `labels` are the labels that its samples may have."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


def to_metric(metric: ExportedMetric) -> Metric:
    return Metric(metric.name, metric.kind, metric.help, metric.labels)


class MetricColumn(NamedTuple):
    """Samples by their owners' labels; `shared_labels` are those that all of them share."""

    labels: Sequence[Labels]
    values: Sequence[float]  # one per item of `labels`
    shared_labels: Labels = NO_LABELS

    def samples(self) -> Iterator[Sample]:
        for labels, value in zip(self.labels, self.values, strict=True):
            yield join(labels, self.shared_labels), value


class MetricFamily(NamedTuple):
    """A metric with its current samples; an unknown value has no sample.

    `suffix` is that of a histogram's samples: `_bucket`, `_count`, `_sum`.

    Samples of many owners come from `columns`, which creates them when they are written: kept until
    then, they would be most of the exporter's memory. The collector guarantees that no two of them
    have the same labels.
    """

    metric: Metric
    samples: Sequence[Sample] = ()
    suffix: str = ""
    columns: Callable[[], Iterable[MetricColumn]] | None = None

    def all_samples(self) -> Iterator[Sample]:
        """The samples, also those of columns."""
        yield from self.samples
        for column in self.columns() if self.columns else ():
            yield from column.samples()


def labelled_family(metric: Metric, values: Mapping[str, float]) -> MetricFamily:
    """A family of a metric with one label; its samples, by the label's value."""
    (name,) = metric.labels
    return MetricFamily(metric, [(label(name, key), value) for key, value in values.items()])


def labels(**pairs: str) -> Labels:
    """Render label pairs: `labels(jobid="1", user="alice")` is `jobid="1",user="alice"`.

    Backslash, quote and line feed are escaped as both text formats require (Prometheus:
    docs/instrumenting/exposition_formats.md).
    """
    return Labels(",".join(f'{name}="{escape(value)}"' for name, value in pairs.items()))


@lru_cache(1000)  # shared by jobs; bounded, because jobs can create interfaces
def label(name: str, value: str) -> Labels:
    """One label pair of a few that recur."""
    return labels(**{name: value})


def join(*parts: Labels) -> Labels:
    return Labels(",".join(part for part in parts if part))


def escape(value: str) -> str:
    """Escape a label value for the text formats; almost none needs it."""
    value = replace_non_utf8(value)
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value
