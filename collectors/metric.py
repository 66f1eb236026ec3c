"""Metrics, labels and families as plain data; `batchjob_exporter.exposition` writes them."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, NewType, overload

from batchjob.quantities.quantity import ExportedMetric
from batchjob.runtime.formatting import displayable

Labels = NewType("Labels", str)
"""Label pairs as they stand between the braces, rendered once and kept with their owner."""

NO_LABELS = Labels("")

Sample = tuple[Labels, float]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    """A family's name, type and definition; `labels` are the labels that its samples may have."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


def exported(metric: ExportedMetric) -> Metric:
    """A metric from the tables of quantities."""
    return Metric(metric.name, metric.kind, metric.help, metric.labels)


class MetricColumn(NamedTuple):
    """Samples by their owners' labels; `more` are the labels that all of them share."""

    labels: Sequence[Labels]
    more: Labels
    values: Sequence[float]  # one per item of `labels`


class MetricColumns(Sequence[Sample]):
    """Samples of many owners, made while they are iterated.

    Those of all metrics together would be most of the exporter's memory.
    """

    __slots__ = ()

    @abstractmethod
    def columns(self) -> Iterator[MetricColumn]:
        """All samples, in parts."""

    def __iter__(self) -> Iterator[Sample]:
        for labels, more, values in self.columns():
            of = [Labels(f"{own},{more}") for own in labels] if more else labels
            yield from zip(of, values, strict=True)

    def __len__(self) -> int:
        return sum(len(column.values) for column in self.columns())

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Sample]: ...
    def __getitem__(self, at: int | slice) -> Sample | Sequence[Sample]:
        return list(self)[at]


class MetricFamily(NamedTuple):
    """A metric with its current samples. There is no sample without a value.

    `suffix` is that of a histogram's samples: `_bucket`, `_count`, `_sum`. `distinct`: the
    collector guarantees that no two samples have the same labels. `created`: the epoch second at
    which a counter was 0, by the labels of its sample.
    """

    metric: Metric
    samples: Sequence[Sample]
    suffix: str = ""
    distinct: bool = False
    created: Mapping[Labels, float] | None = None


def labels(**pairs: str) -> Labels:
    """Render label pairs: `labels(jobid="1", user="alice")` is `jobid="1",user="alice"`.

    Backslash, quote and line feed are escaped as both text formats require (Prometheus:
    docs/instrumenting/exposition_formats.md).
    """
    return Labels(",".join(f'{name}="{escape(value)}"' for name, value in pairs.items()))


def join(*parts: Labels) -> Labels:
    """Join rendered labels with commas, without the empty ones."""
    return Labels(",".join(part for part in parts if part))


def escape(value: str) -> str:
    """A label value as the text formats write it; almost none needs escaping."""
    value = displayable(value)
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value
