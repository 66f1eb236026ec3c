"""Faults of a node and of its exporter, which reads a node made of files."""

import contextlib
import json
import time

from tests.collectors.jobs.nodes import Node
from tests.conftest import unpack
from tests.e2e import exporter
from tests.fake_nvml.library import FakeNvml, compile_into
from tests.helpers.waiting import until
from tests.prometheus import chain
from tests.simulated.powercap import Powercap
from tests.simulated.redfish_service import RedfishService, link, one_node

JOBS_FLAGS = (
    "--collector.disable-defaults", "--collector.jobs", "--collector.jobs.processes-interval=1s",
)  # fmt: skip
NODE_FLAGS = ("--collector.disable-defaults", "--collector.node")


def exporter_is_stopped(folder, recording):
    with exporter.running(*NODE_FLAGS) as running:
        node = chain.node(running.address)
        recording.healthy(node)
    recording.faulty(node)


def one_of_two_exporters_is_stopped(folder, recording):
    with exporter.running(*NODE_FLAGS) as first:
        with exporter.running(*NODE_FLAGS) as second:
            nodes = chain.node(first.address), chain.node(second.address, "n002")
            recording.healthy(*nodes)
        recording.faulty(*nodes)


def targets_lose_the_label_cluster(folder, recording):
    node = _JobNode(folder)
    node.job("job_1", 10)
    with node.exporter() as running:
        with_label = chain.node(running.address)
        _wait_for_series(with_label, "batchjob_jobs")
        recording.healthy(with_label)
        recording.faulty(with_label._replace(labels={"instance": "n001"}))


def proc_stat_is_empty(folder, recording):
    host = unpack("slurm-22.05-v2-r3-a", folder / "node")
    with exporter.running(*NODE_FLAGS, f"--path.procfs={host.procfs}") as running:
        node = chain.node(running.address)
        recording.healthy(node)
        (folder / "node/proc/stat").write_text("")
        recording.faulty(node)


def file_of_a_job_cannot_be_read(folder, recording):
    node = _JobNode(folder)
    job = node.job("job_1", 10)
    with node.exporter() as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_job_processes")
        recording.healthy(target)
        processes = job / "step_batch/user/task_0/cgroup.procs"
        processes.unlink()
        processes.symlink_to("/proc/self/mem")  # gives EIO
        wait_for_rise = chain.counter_rise(target, "batchjob_job_read_errors_total", reason="other")
        recording.faulty(target, between=wait_for_rise)


def more_jobs_than_the_maximum(folder, recording):
    node = _JobNode(folder)
    node.job("job_1", 10)
    node.job("job_2", 20)
    with node.exporter() as running:
        recording.healthy(chain.node(running.address))
    with node.exporter("--collector.jobs.max=1") as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_jobs_ignored", above=0)
        recording.faulty(target)


def user_without_a_name(folder, recording):
    node = _JobNode(folder)
    node.job("job_1", 10)
    with node.exporter() as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_job_processes")
        recording.healthy(target)
        node.job("job_2", 20, uid=54321)
        _wait_for_series(target, "batchjob_job_processes", user="54321")
        recording.faulty(target)


def bmc_is_silent(folder, recording):
    environment = "/redfish/v1/Chassis/1/EnvironmentMetrics"
    service = RedfishService(one_node(EnvironmentMetrics=link(environment)))
    service.documents[environment] = {"PowerWatts": {"Reading": 374.5}}
    with contextlib.closing(service), exporter.running(*_redfish_flags(folder, service)) as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_meter_age_seconds")

        def wait_for_reading():
            earlier_requests = len(service.requests)
            until(lambda: len(service.requests) > earlier_requests + 1, "the BMC is asked", 60)

        recording.healthy(target, between=wait_for_reading)
        service.documents[environment] = 503
        _wait_for_series(target, "batchjob_meter_age_seconds", above=5)
        wait_for_rise = chain.counter_rise(target, "batchjob_meter_seconds_without_data_total")
        recording.faulty(target, between=wait_for_rise)


def _redfish_flags(folder, service):
    (folder / "password").write_text("geheim\n")
    (folder / "password").chmod(0o600)
    service.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return (
        "--collector.disable-defaults", "--collector.energy", "--collector.energy.source=redfish",
        "--collector.energy.interval=1s", "--collector.redfish",
        f"--collector.redfish.url={service.url}", "--collector.redfish.user=power",
        f"--collector.redfish.password-file={folder}/password",
        f"--collector.redfish.ca-file={folder}/ca.pem", "--collector.redfish.interval=1s",
        "--collector.redfish.timeout=2s",
    )  # fmt: skip


def accounts_on_disk_are_damaged(folder, recording):
    host = unpack("slurm-22.05-v2-r3-a", folder / "node")
    zone = Powercap(folder / "node").zone("intel-rapl:0", "package-0")
    state = folder / "state"
    state.mkdir()
    flags = (
        "--collector.disable-defaults", "--collector.rapl", "--collector.energy",
        "--collector.energy.source=rapl", "--collector.energy.interval=1s",
        f"--path.state={state}",
        f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}",
    )  # fmt: skip
    boot_folder = folder / "node/proc/sys/kernel/random"
    boot_folder.mkdir(parents=True, exist_ok=True)
    (boot_folder / "boot_id").write_text("6f1f2a3e-0d5b-4f0c-9d39-2e0f4b0c8f11\n")

    def run_meter():
        zone.run(60)
        time.sleep(0.5)

    with exporter.running(*flags) as running:
        target = chain.node(running.address)
        until(
            lambda: run_meter() or _has_series(target, "batchjob_node_energy_deviation_ratio"),
            "energy",
        )
        recording.healthy(target, between=run_meter)
    document = json.loads((state / "energy.json").read_text())
    document["metered_joules"] *= 2
    (state / "energy.json").write_text(json.dumps(document))
    with exporter.running(*flags) as running:
        target = chain.node(running.address)
        until(
            lambda: run_meter() or _has_series(target, "batchjob_node_energy_deviation_ratio"),
            "energy",
        )
        recording.faulty(target, between=run_meter)


def job_fills_its_memory(folder, recording):
    node = _JobNode(folder)
    job = node.job("job_1", 10)
    (job / "memory.max").write_text(f"{1 << 30}\n")
    _write_anon_memory(job, 100 << 20)
    with node.exporter() as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_job_processes")
        recording.healthy(target)
        _write_anon_memory(job, 1000 << 20)
        recording.faulty(target)


def _write_anon_memory(job, anon_bytes):
    (job / "memory.stat").write_text(f"anon {anon_bytes}\nfile 4096\nshmem 0\n")


def job_idles_on_its_cpus(folder, recording):
    """The job has 8 CPUs, and uses all of them for each interval of `healthy`."""
    node = _JobNode(folder)
    job = node.job("job_1", 10)
    (job / "cpuset.cpus.effective").write_text("0-7\n")
    (job / "cpuset.cpus").write_text("0-7\n")
    cpu_microseconds = [0]

    def use_all_cpus():
        cpu_microseconds[0] += 8 * chain.INTERVAL * 1_000_000
        node.files.set_cpu(job, (cpu_microseconds[0], 0))

    with node.exporter() as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_job_processes")
        recording.healthy(target, between=use_all_cpus)
        recording.faulty(target)


def gpus_of_a_job_idle(folder, recording):
    host = unpack("slurm-22.05-v2-r3-a", folder / "node")
    driver = folder / "node/proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: 570.86.15\n")
    for directory in ("prolog", "nvml"):
        (folder / directory).mkdir()
    for gpu in ("0", "1"):
        (folder / "prolog" / gpu).write_text("25\n")
    compile_into(folder / "nvml")
    nvml = FakeNvml(folder / "nvml.keys")
    nvml.add_gpus(2)
    environ = ("env", f"LD_LIBRARY_PATH={folder}/nvml", f"FAKE_NVML={nvml.path}")
    flags = (
        "--collector.disable-defaults", "--collector.jobs", "--collector.gpu",
        "--collector.gpu.interval=1s", f"--collector.gpu.job-files={folder}/prolog",
        f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}",
        f"--path.cgroupfs={host.cgroupfs}",
    )  # fmt: skip
    with exporter.running(*flags, inside=environ) as running:
        target = chain.node(running.address)
        _wait_for_series(target, "batchjob_job_gpu_utilization_ratio", above=0)
        recording.healthy(target)
        nvml.set({"gpu0.utilization": 0, "gpu1.utilization": 0})
        until(
            lambda: not _has_series(target, "batchjob_job_gpu_utilization_ratio", above=0), "idle"
        )
        recording.faulty(target)


class _JobNode:
    """A node with its files, whose jobs began a day ago."""

    def __init__(self, folder):
        self.files = Node(folder)
        (self.files.proc / "stat").write_text(f"btime {int(time.time()) - 86400}\n")

    def job(self, name, pid, uid=0):
        self.files.add_process(pid, uid=uid, started=100)
        return self.files.add_job(name, pids=[pid])

    def exporter(self, *flags):
        host = self.files.host
        paths = (f"--path.procfs={host.procfs}", f"--path.cgroupfs={host.cgroupfs}")
        return exporter.running(*JOBS_FLAGS, *paths, *flags)


def _has_series(target, name, above=float("-inf"), **labels):
    wanted = {("__name__", name), *labels.items()}
    return any(wanted <= set(key) and value > above for key, value in target.scrape().items())


def _wait_for_series(target, name, **condition):
    until(lambda: _has_series(target, name, **condition), f"{name} {condition}", 60, 0.2)


FAULTS = {
    "BatchjobExporterDown": exporter_is_stopped,
    "BatchjobExportersDown": one_of_two_exporters_is_stopped,
    "BatchjobNoClusterLabel": targets_lose_the_label_cluster,
    "BatchjobCollectorFailing": proc_stat_is_empty,
    "BatchjobReadErrors": file_of_a_job_cannot_be_read,
    "BatchjobJobsIgnored": more_jobs_than_the_maximum,
    "BatchjobJobsWithoutName": user_without_a_name,
    "BatchjobMeterStale": bmc_is_silent,
    "BatchjobEnergyUnknown": bmc_is_silent,
    "BatchjobEnergyNotConserved": accounts_on_disk_are_damaged,
    "BatchjobMemoryNearLimit": job_fills_its_memory,
    "BatchjobLowCpu": job_idles_on_its_cpus,
    "BatchjobGpuIdle": gpus_of_a_job_idle,
}
