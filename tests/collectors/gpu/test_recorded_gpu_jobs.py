"""Jobs of recorded Slurm and PBS nodes, found by the jobs collector, on GPUs of a fake driver."""

import pytest

from collectors.gpu.collector import GpuCollector, GpuOptions
from collectors.host import Host
from collectors.job_samples import samples_reader
from collectors.jobs import collector as jobs_module


@pytest.fixture
def start_mapping(fake_nvml, host, as_recorded, tree):
    """Start both collectors on a recorded machine; return a function of its (job, GPU, source)."""
    collectors = []

    def start(name):
        recorded = tree(name)
        jobs = jobs_module.JobsCollector(recorded, jobs_module.JobsOptions())
        node = Host(
            procfs=host.procfs,
            sysfs=host.sysfs,
            cgroupfs=recorded.cgroupfs,
            monotonic=host.monotonic,
        )
        gpus = GpuCollector(node, GpuOptions(interval=0.05), jobs)
        collectors.extend((gpus, jobs))
        jobs.start()
        gpus.start()

        def pairs():
            holdings = gpus.refresh_map().holdings
            return sorted((each.job.jobid, each.unit.gpu.index, each.source) for each in holdings)

        return pairs

    yield start
    for each in collectors:
        each.stop()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm-22.05-v1-05-multistep-2nodes-gpu", [("12", 0), ("12", 1)]),
        ("slurm-22.05-v1-07-suspended-interactive-shard", [("14", 0)]),
        ("slurm-24.11-v2-r2-a", [("22", 2), ("22", 3)]),
    ],
)
def test_recorded_slurm_jobs_are_mapped_to_gpus(
    fake_nvml, start_mapping, eventually, name, expected
):
    fake_nvml.add_gpus(4)
    found = start_mapping(name)
    eventually(lambda: found() == [(job, gpu, "SLURM_JOB_GPUS") for job, gpu in expected])


def test_samples_include_the_quantities_of_each_gpu(fake_nvml, host, as_recorded, tree, eventually):
    fake_nvml.add_gpus(2)
    recorded = tree("openpbs-23.06-v1-07-two-gpu-jobs")  # the devices cgroup confirms the GPUs
    jobs = jobs_module.JobsCollector(recorded, jobs_module.JobsOptions())
    node = Host(
        procfs=host.procfs, sysfs=host.sysfs, cgroupfs=recorded.cgroupfs, monotonic=host.monotonic
    )
    gpus = GpuCollector(node, GpuOptions(interval=0.05), jobs)
    jobs.start()
    gpus.start()
    try:
        read_samples = samples_reader([jobs, gpus])
        eventually(lambda: len(gpus.holdings()) == 2)
        samples = {each.job.jobid: each.values for each in read_samples()}
    finally:
        gpus.stop()
        jobs.stop()
    quantities = {name.quantity for name in samples["11.pbs01"] if name.of}
    assert {
        "gpu_memory_total_bytes", "gpu_temperature_celsius", "gpu_sm_clock_hertz",
        "gpu_memory_clock_hertz", "gpu_ecc_corrected_errors", "gpu_ecc_uncorrected_errors",
        "gpu_power_watts",
    } <= quantities  # fmt: skip


def test_recorded_pbs_jobs_are_mapped_to_gpus(fake_nvml, start_mapping, eventually):
    fake_nvml.add_gpus(2)
    found = start_mapping("openpbs-23.06-v1-07-two-gpu-jobs")
    eventually(lambda: found() == [("11.pbs01", 0, "devices"), ("12.pbs01", 1, "devices")])
