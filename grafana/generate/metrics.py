"""Metrics of the tables of quantities in PromQL, and their units in Grafana."""

from batchjob.quantities.quantity import ExportedMetric, Quantity, Unit

Metric = Quantity | ExportedMetric

_UNITS: dict[Unit, str] = {
    "seconds": "s", "bytes": "bytes", "count": "none", "cpus": "none", "ratio": "percentunit",
    "joules": "joule", "grams": "massg", "watts": "watt", "celsius": "celsius", "hertz": "hertz",
}  # fmt: skip
_UNITS_PER_SECOND: dict[Unit, str] = {
    "seconds": "percentunit", "bytes": "Bps", "count": "ops", "joules": "watt",
}  # fmt: skip


def series(metric: Metric, selector: str) -> str:
    """The metric's series with these labels: `series(CPUS, 'jobid="1"')`."""
    exported = metric.metric if isinstance(metric, Quantity) else metric
    return f"{exported.name}{{{selector}}}"


def unit(metric: Metric) -> str:
    """Grafana's unit of the metric's values."""
    return _UNITS[_unit(metric)]


def rate_unit(metric: Metric) -> str:
    """Grafana's unit of the increase of a counter per second."""
    return _UNITS_PER_SECOND[_unit(metric)]


def _unit(metric: Metric) -> Unit:
    return (metric.metric if isinstance(metric, Quantity) else metric).unit
