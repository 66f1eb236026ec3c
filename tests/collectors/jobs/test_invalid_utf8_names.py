"""A cgroup name that is not UTF-8 does not cost a node its metrics."""

import json
import logging
import os

import pytest

from batchjob.runtime import log
from batchjob.runtime.settings import LogOptions
from batchjob_cli.main import main
from batchjob_exporter import exposition
from collectors.metric import Labels, Metric, MetricFamily, labels
from tests.collectors.jobs.nodes import SCOPE, samples, users

HOSTILE = os.fsdecode(b"\xff\xfe")
REPLACED = "\N{REPLACEMENT CHARACTER}" * 2


def test_job_in_a_scope_with_an_invalid_name_is_shown(node):
    node.add_job("job_77", scope=f"machine.slice/{HOSTILE}_slurmstepd.scope", pids=[10])
    node.add_job("job_1", scope=SCOPE, pids=[11])
    node.add_process(10)
    node.add_process(11)
    jobs = node.collector()
    jobs.update()
    assert users(jobs).keys() == {"1", "77"}
    assert samples(jobs)["cpu_seconds_total", "77", "user"] == 1
    text = exposition.render(jobs.collect(), exposition.OPENMETRICS).decode()
    assert f'node="{REPLACED}"' in text
    assert f'cgroup="machine.slice/{REPLACED}_slurmstepd.scope/job_77"' in text
    for name, _ in jobs.readings():
        assert all(part.encode() for part in name)


def test_invalid_label_value_does_not_affect_other_samples():
    gauge = Metric("batchjob_x", "gauge", "X.", ("name",))
    samples = [(Labels(f'name="{HOSTILE}"'), 1.0), (labels(name="b"), 2.0)]
    text = exposition.render([MetricFamily(gauge, samples)]).decode()
    assert 'batchjob_x{name="b"} 2.0' in text


@pytest.mark.parametrize("format", ["json", "logfmt"])
def test_log_line_may_contain_an_invalid_name(format, capfd):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.set_up(LogOptions(format=format))
        logging.getLogger("batchjob.test").warning("cgroup %s is odd", HOSTILE)
    finally:
        root.handlers[:], root.level = before[0], before[1]
    line = capfd.readouterr().err
    assert "is odd" in line
    if format == "json":
        assert json.loads(line)["level"] == "warning"


def test_doctor_reports_on_a_node_with_an_invalid_name(node, capfdbinary):
    node.add_job("job_77", scope=f"machine.slice/{HOSTILE}_slurmstepd.scope", pids=[10])
    node.add_process(10)
    paths = [f"--path.{name}={getattr(node.host, name)}" for name in ("procfs", "cgroupfs")]
    main(["doctor", *paths])
    assert capfdbinary.readouterr().out.decode()
