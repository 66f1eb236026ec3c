"""All ways to a job's past measurements, each with samples of our choice in it."""

import contextlib
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from batchjob.quantities.index import QUANTITIES
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
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

    Replicas do not exist here: of a series the first one's samples are taken. Nor does NaN.
    """
    moments = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        metric, text, value, at = _LINE.fullmatch(line).groups()
        labels = dict(_LABEL.findall(text))
        if labels.pop("cluster") == "c1" and labels.pop("replica", "a") == "a" and value != "NaN":
            own = (labels[name] for name in ("manager", "jobid", "user", "instance"))
            who = SampleHeader(*own, interval)
            moments[who][float(at)][_name(metric, labels)] = float(value)
    with tempfile.TemporaryDirectory(prefix="bj-samples-") as folder:
        for who, samples in moments.items():
            writer = Writer(folder_of(Path(folder), who.jobid), who, min(samples))
            for at, values in sorted(samples.items()):
                writer.write(JobSample(at, values))
            writer.close()
        yield SampleHistory(Path(folder), "c1")


def _name(metric, labels):
    for each in QUANTITIES:
        if each.metric.name == metric and dict(each.labels).items() <= labels.items():
            own = each.group.labels if each.group else ()
            return SampleKey(each.name, tuple(labels[label] for label in own))
    raise AssertionError(f"samples have no {metric} of {labels}")


def _asked_over_http(store):
    @contextlib.contextmanager
    def opened(lines):
        with store(lines) as url:
            yield Prometheus(Endpoint(url))

    return opened


STORES = [
    pytest.param(_asked_over_http(prometheus), id="prometheus"),
    pytest.param(_asked_over_http(victoria_metrics), id="victoria_metrics"),
    pytest.param(sample_files, id="samples"),
]
"""A history opened over lines of samples."""
