"""All stores of a job's past measurements, opened with given samples."""

import contextlib
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from batchjob.quantities.sample import QUANTITIES, JobSample, SampleHeader, SampleKey
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from tests.batchjob_stats_db.tsdb import prometheus, victoria_metrics

_LINE = re.compile(r"(\w+)\{(.*)\} (\S+) (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@contextlib.contextmanager
def sample_files(lines, interval=30.0):
    """A history over files that hold the samples of the lines of cluster c1, one file a job.

    Sample files know neither replicas nor NaN: only replica "a" is written.
    """
    samples_by_header = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        metric, text, value, at = _LINE.fullmatch(line).groups()
        labels = dict(_LABEL.findall(text))
        if labels.pop("cluster") == "c1" and labels.pop("replica", "a") == "a" and value != "NaN":
            fields = (labels[name] for name in ("manager", "jobid", "user", "instance"))
            header = SampleHeader(*fields, interval)
            samples_by_header[header][float(at)][_sample_key(metric, labels)] = float(value)
    with tempfile.TemporaryDirectory(prefix="bj-samples-") as folder:
        for header, samples in samples_by_header.items():
            writer = Writer(folder_of(Path(folder), header.jobid), header, min(samples))
            for at, values in sorted(samples.items()):
                writer.write(JobSample(at, values))
            writer.close()
        yield SampleHistory(Path(folder), "c1")


def _sample_key(metric, labels):
    for each in QUANTITIES:
        if each.metric.name == metric and dict(each.labels).items() <= labels.items():
            group_labels = each.group.labels if each.group else ()
            return SampleKey(each.name, tuple(labels[label] for label in group_labels))
    raise AssertionError(f"samples have no {metric} of {labels}")


def _queried_over_http(open_server):
    @contextlib.contextmanager
    def open_history(lines):
        with open_server(lines) as url:
            yield Prometheus(Endpoint(url))

    return open_history


STORES = [
    pytest.param(_queried_over_http(prometheus), id="prometheus"),
    pytest.param(_queried_over_http(victoria_metrics), id="victoria_metrics"),
    pytest.param(sample_files, id="samples"),
]
"""Context managers that open a history over lines of samples."""
