"""Rows of the tables from which the cluster's metric families are made."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from collectors.metric import Labels, Metric, labels

Samples = Iterable[tuple[Labels, float | None]]


class ClusterMetric(NamedTuple):
    """A family and the function that makes its samples from a reading; None makes no sample."""

    metric: Metric
    samples: Callable[[Any], Samples]
    native: bool = False  # Slurm 25.11 and later show it themselves (its metrics.html)
    on_demand: bool = False  # a series for every user


def gauge(name: str, help: str, *names: str) -> Metric:
    """A gauge of the cluster; `names` are its labels."""
    return Metric(f"batchjob_cluster_{name}", "gauge", help, names)


def counter(name: str, help: str, *names: str) -> Metric:
    """A counter of the cluster; `names` are its labels."""
    return Metric(f"batchjob_cluster_{name}", "counter", help, names)


def counted(counts: Mapping[tuple[str, ...], float], *names: str) -> Samples:
    """A sample for each key, whose parts are the values of the labels `names`."""
    for values, number in sorted(counts.items()):
        yield labels(**dict(zip(names, values, strict=True))), float(number)
