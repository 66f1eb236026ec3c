"""From the driver's energy counter to the joules of jobs: both collectors as they run."""

import time

import pytest

from collectors.energy import collector as energy
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.jobs.view import JobCpu, JobHolder, JobName
from collectors.metric import labels
from tests.helpers.waiting import scaled, until


class TwoJobs:
    """Job 1 holds GPU 0, jobs 1 and 2 share GPU 1, nobody holds GPU 2."""

    def __init__(self):
        self.names = [
            JobName("slurm", n, "alice", labels(manager="slurm", jobid=n, user="alice"))
            for n in ("1", "2")
        ]

    def usage(self):
        return [JobCpu(name, 1.0, 1.0, None, 0.0) for name in self.names]

    def lifetimes(self):
        return {}

    def is_settled(self):
        return True

    def holders(self):
        gpus = ("0,1", "1")
        return [
            JobHolder(name, 1000, (), ({"SLURM_JOB_GPUS": held, "SLURM_JOB_NUM_NODES": "1"},), ())
            for name, held in zip(self.names, gpus, strict=True)
        ]


@pytest.fixture
def collectors(fake_nvml, host, tmp_path):
    """The energy collector over a running GPU collector; the test calls its ticks."""
    fake_nvml.add_gpus(3)
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 10000 0 0 0 0 0 0\ncpu0 1\nbtime 1\n")
    jobs = TwoJobs()
    gpus = GpuCollector(host, GpuOptions(interval=0.02), jobs)
    gpus.start()
    energy_collector = energy.EnergyCollector(
        host, energy.EnergyOptions(), {"jobs": jobs, "gpu": gpus}
    )
    yield energy_collector, gpus
    gpus.stop()


def series_values(families):
    return {
        f"{family.metric.name}{{{text}}}": value
        for family in families
        for text, value in family.samples
    }


def tick_until(energy_collector, clock, condition):
    deadline = time.monotonic() + scaled(20)
    while not condition(series_values(energy_collector.collect())):
        assert time.monotonic() < deadline, series_values(energy_collector.collect())
        clock.offset_seconds += 10
        time.sleep(0.05)
        energy_collector.tick()


def test_gpu_energy_is_attributed_to_holders_or_unallocated(fake_nvml, collectors, clock):
    energy_collector, gpus = collectors
    until(lambda: len(gpus.gpu_energy()) == 3 and all(r.shares for r in gpus.gpu_energy()[:2]))
    energy_collector.tick()
    clock.offset_seconds += 40  # the collector waits this long for a node meter; there is none
    tick_until(energy_collector, clock, lambda series: any("consumer" in key for key in series))
    fake_nvml.set({f"gpu{n}.energy": 5_000_000 + 900_000 for n in range(3)})  # 900 J more on each
    node = 'batchjob_node_energy_joules_total{component="gpu",consumer='
    tick_until(
        energy_collector,
        clock,
        lambda series: (
            series.get(f'{node}"jobs"}}', 0) + series.get(f'{node}"unallocated"}}', 0) > 2699
        ),
    )
    series = series_values(energy_collector.collect())
    of_jobs = {
        jobid: sum(
            value
            for key, value in series.items()
            if key.startswith("batchjob_job_energy_joules_total")
            and f'jobid="{jobid}"' in key
            and 'component="gpu"' in key
        )
        for jobid in ("1", "2")
    }
    assert of_jobs["1"] == pytest.approx(900 + 450)
    assert of_jobs["2"] == pytest.approx(450)
    assert series[f'{node}"unallocated"}}'] == pytest.approx(900)
