"""Metrics, labels and families as plain data; `batchjob_exporter.exposition` writes them."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, NewType, overload

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
    """The metric of a quantity, from the tables of quantities."""
    return Metric(metric.name, metric.kind, metric.help, metric.labels)


class MetricColumn(NamedTuple):
    """Samples by their owners' labels; `shared_labels` are those that all of them share."""

    labels: Sequence[Labels]
    shared_labels: Labels
    values: Sequence[float]  # one per item of `labels`


class MetricColumns(Sequence[Sample]):
    """Samples of many owners, created while they are iterated.

    If all samples were kept, they would be most of the exporter's memory.
    """

    __slots__ = ()

    @abstractmethod
    def columns(self) -> Iterator[MetricColumn]:
        """All samples, in parts."""

    def __iter__(self) -> Iterator[Sample]:
        for labels, shared_labels, values in self.columns():
            sample_labels = (
                [Labels(f"{owner_labels},{shared_labels}") for owner_labels in labels]
                if shared_labels
                else labels
            )
            yield from zip(sample_labels, values, strict=True)

    def __len__(self) -> int:
        return sum(len(column.values) for column in self.columns())

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        return list(self)[index]


class MetricFamily(NamedTuple):
    """A metric with its current samples; an unknown value has no sample.

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
    """Escape a label value for the text formats; almost none needs it."""
    value = replace_non_utf8(value)
    if '"' in value or "\\" in value or "\n" in value:
        return value.translate(_ESCAPES)
    return value
