"""Values of panels that divide by time, evaluated by Prometheus' own tool."""

import shutil

import pytest

from grafana.generate.dashboards import job_live
from tests.prometheus.replay import replay

LABELS = 'cluster="c",instance="n1",manager="slurm",jobid="1",user="alice"'


def expression(title):
    """The PromQL of a panel of the dashboard of a running job."""
    (panel,) = (each for each in job_live.DASHBOARD.panels if each.title == title)
    return panel.queries[0].expr.replace("$cluster", "c").replace("$job", "1")


@pytest.mark.skipif(not shutil.which("promtool"), reason="not installed: promtool")
@pytest.mark.parametrize(("moment", "used"), [("1m", 0.12), ("2m", 0.12), ("20m", 0.06)])
def test_cpu_use_of_a_young_job_is_that_of_its_life(tmp_path, moment, used):
    """12 % of 4 CPUs for ten minutes, then 6 %; the first sample is of 10 s after the start."""
    busy = "4.8+4.8x58 286.8+2.4x100"
    series = [
        (f'batchjob_job_cpu_seconds_total{{{LABELS},mode="user"}}', f"_ {busy}"),
        (f"batchjob_job_cpus{{{LABELS}}}", "_ 4x160"),
        (f"batchjob_job_start_time_seconds{{{LABELS}}}", "_ 0x160"),
    ]
    samples = [{"labels": "{}", "value": used}]
    replay(tmp_path, 10, series, [(f"round({expression('CPU use')}, 0.0001)", moment, samples)], [])
