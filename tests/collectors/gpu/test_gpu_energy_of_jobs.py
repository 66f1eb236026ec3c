"""From the driver's energy counter to the joules of jobs: both collectors as they run."""

import time

import pytest

from collectors.energy import collector as energy
from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.jobs.view import JobCpu, JobHolder, JobName
from collectors.metric import labels


class TwoJobs:
    """Job 1 holds GPU 0, jobs 1 and 2 share GPU 1, nobody holds GPU 2."""

    def __init__(self):
        self.names = [
            JobName("slurm", n, "alice", labels(manager="slurm", jobid=n, user="alice"))
            for n in ("1", "2")
        ]

    def usage(self):
        return [JobCpu(name, 1.0, 1.0, None, 0.0) for name in self.names]

    def holders(self):
        gpus = ("0,1", "1")
        return [
            JobHolder(name, 1000, (), ({"SLURM_JOB_GPUS": held, "SLURM_JOB_NUM_NODES": "1"},), ())
            for name, held in zip(self.names, gpus, strict=True)
        ]


@pytest.fixture
def books(fake, host, tmp_path):
    """The energy collector over a running GPU collector; its ticks are the test's."""
    fake.gpus(3)
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 10000 0 0 0 0 0 0\ncpu0 1\nbtime 1\n")
    jobs = TwoJobs()
    gpus = GpuCollector(host, GpuOptions(interval=0.02), jobs)
    gpus.start()
    made = energy.build(host, energy.EnergyOptions(), {"jobs": jobs, "gpu": gpus})
    yield made, gpus
    gpus.stop()


def shown(families):
    return {
        f"{family.metric.name}{{{text}}}": value
        for family in families
        for text, value in family.samples
    }


def tick_until(made, clock, condition):
    until = time.monotonic() + 20
    while not condition(shown(made.collect())):
        assert time.monotonic() < until, shown(made.collect())
        clock.ahead += 10
        time.sleep(0.05)
        made.tick()


def test_each_gpus_joules_go_to_its_holders_and_the_rest_to_nobody(fake, books, clock):
    made, gpus = books
    until = time.monotonic() + 20
    while len(gpus.gpu_energy()) < 3 or not all(r.shares for r in gpus.gpu_energy()[:2]):
        assert time.monotonic() < until
        time.sleep(0.02)
    made.tick()
    clock.ahead += 40  # so long is waited for a meter of the node; there is none
    tick_until(made, clock, lambda seen: any("consumer" in key for key in seen))
    fake.set({f"gpu{n}.energy": 5_000_000 + 900_000 for n in range(3)})  # 900 J more on each
    node = 'batchjob_node_energy_joules_total{component="gpu",consumer='
    tick_until(
        made,
        clock,
        lambda seen: seen.get(f'{node}"jobs"}}', 0) + seen.get(f'{node}"unallocated"}}', 0) > 2699,
    )
    seen = shown(made.collect())
    of_jobs = {
        jobid: sum(
            value
            for key, value in seen.items()
            if key.startswith("batchjob_job_energy_joules_total")
            and f'jobid="{jobid}"' in key
            and 'component="gpu"' in key
        )
        for jobid in ("1", "2")
    }
    assert of_jobs["1"] == pytest.approx(900 + 450)
    assert of_jobs["2"] == pytest.approx(450)
    assert seen[f'{node}"unallocated"}}'] == pytest.approx(900)
