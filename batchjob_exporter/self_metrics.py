"""The exporter's metrics about itself: its build and its process."""

import os
import platform
from collections.abc import Callable

import batchjob
from batchjob_exporter.self_process import process_reader
from collectors.metric import Metric, MetricFamily, labels

BUILD_INFO = Metric(
    "batchjob_exporter_build_info",
    "gauge",
    "Versions of the exporter and of Python; always 1.",
    ("version", "python", "revision"),
)
METRICS = (BUILD_INFO,)


def version_text() -> str:
    """One line for `--version`."""
    pairs = _build_labels()
    revision = f", revision {pairs['revision']}" if "revision" in pairs else ""
    return f"batchjob_exporter {pairs['version']} (Python {pairs['python']}{revision})"


def self_families_reader(process_metrics: bool) -> Callable[[], list[MetricFamily]]:
    """A function that returns the exporter's families about itself."""
    build = MetricFamily(BUILD_INFO, [(labels(**_build_labels()), 1.0)])
    if not process_metrics:
        return lambda: [build]
    read = process_reader()
    return lambda: [build, *read()]


def _build_labels() -> dict[str, str]:
    pairs = {"version": batchjob.__version__, "python": platform.python_version()}
    # Packagers set this variable if they know the commit.
    revision = os.environ.get("BATCHJOB_REVISION", "")
    return {**pairs, "revision": revision} if revision else pairs
