"""One job from Prometheus: at full resolution, and with the user's own rights."""

from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.gpu import JOB_GPU_MEMORY, JOB_GPU_UTILIZATION
from batchjob.quantities.job import (
    CPU_SECONDS,
    CPU_THROTTLED_SECONDS,
    CPUS,
    IO_READ_BYTES,
    IO_READS,
    IO_WRITES,
    IO_WRITTEN_BYTES,
    MEMORY_ANON,
    MEMORY_CURRENT,
    MEMORY_FILE,
    MEMORY_LIMIT,
    MEMORY_LIMIT_HITS,
    MEMORY_SHMEM,
    MEMORY_SWAP,
    NETWORK_RECEIVE_BYTES,
    NETWORK_TRANSMIT_BYTES,
    OOM_KILLS,
    OPEN_FILES,
    PAGE_FAULTS,
    PROCESS_IO_READ_BYTES,
    PROCESS_IO_WRITTEN_BYTES,
    PROCESSES,
    STALLED_SECONDS,
    START_TIME,
    THREADS,
    WAITING_SECONDS,
)
from grafana.generate.dashboards.parts import ANY, LITTLE_USED, NEAR_LIMIT, figure, heading
from grafana.generate.model import PAGES, Dashboard, Panel, Promql, Variable
from grafana.generate.promql import Metric, rate_unit, series, unit

_JOB = 'cluster="$cluster",jobid="$job"'
_CPU = series(CPU_SECONDS, _JOB)
_HERE = f'{_JOB},instance=~"$node"'


def _rate(metric: Metric, by: str) -> str:
    return f"sum by ({by}) (rate({series(metric, _HERE)}[$__rate_interval]))"


def _sum(metric: Metric) -> str:
    return f"sum by (instance) ({series(metric, _HERE)})"


DASHBOARD = Dashboard(
    "job-live",
    "Job, live",
    "One of your jobs, with all samples in Prometheus.",
    (
        figure("CPUs allocated", f"sum({series(CPUS, _JOB)})", "none", "Over all nodes."),
        figure(
            "CPU use",
            f"(sum({_CPU}) - (sum({_CPU} offset 5m) or vector(0)))"
            f" / (clamp_max(time() - min({series(START_TIME, _JOB)}), 300)"
            f" * sum({series(CPUS, _JOB)}))",
            "percentunit",
            "Of the allocated CPUs, over the last five minutes, or since the job's start.",
            LITTLE_USED,
        ),
        figure(
            "Memory",
            f"max(({series(MEMORY_ANON, _JOB)}"
            f" + {series(MEMORY_SHMEM, _JOB)})"
            f" / ({series(MEMORY_LIMIT, _JOB)} > 0))",
            "percentunit",
            "Fraction of the limit on the node closest to it; without page cache, "
            "which can be reclaimed.",
            NEAR_LIMIT,
        ),
        figure(
            "OOM kills",
            f"sum({series(OOM_KILLS, _JOB)})",
            "none",
            "Processes that the OOM killer terminated.",
            ANY,
        ),
        figure(
            "Energy",
            f"sum({series(ENERGY_JOULES, _JOB)})",
            "joule",
            "So far, including the job's share of idle power.",
        ),
        figure(
            "Emissions",
            f"sum by (provider) ({series(EMISSIONS_GRAMS, _JOB)})",
            "massg",
            "So far, in CO2e, by provider of the emission factor.",
        ),
        heading("CPU"),
        Panel(
            "CPUs in use",
            (
                Promql(_rate(CPU_SECONDS, "instance"), "{{instance}}"),
                Promql(_sum(CPUS), "{{instance}} allocated"),
            ),
            "none",
            "By node.",
        ),
        Panel(
            "User and system",
            (Promql(_rate(CPU_SECONDS, "mode"), "{{mode}}"),),
            "none",
            "System time is the kernel's, for the job.",
            stacked=True,
        ),
        Panel(
            "Throttled by CPU quota",
            (Promql(_rate(CPU_THROTTLED_SECONDS, "instance"), "{{instance}}"),),
            rate_unit(CPU_THROTTLED_SECONDS),
            "Per second, summed over CPUs; if the exporter exposes the group `throttling`.",
        ),
        heading("Memory"),
        Panel(
            "Memory by node",
            (
                Promql(_sum(MEMORY_CURRENT), "{{instance}}"),
                Promql(_sum(MEMORY_LIMIT), "{{instance}} limit"),
            ),
            unit(MEMORY_CURRENT),
            "Charged to the job, including page cache, which is reclaimed when the "
            "limit is reached.",
        ),
        Panel(
            "Memory by kind",
            tuple(
                Promql(f"sum({series(part, _HERE)})", name)
                for part, name in (
                    (MEMORY_ANON, "heap and stack"),
                    (MEMORY_SHMEM, "shared memory"),
                    (MEMORY_SWAP, "swap"),
                    (MEMORY_FILE, "page cache"),
                )
            ),
            "bytes",
            "Over the selected nodes. Page cache includes shared memory.",
        ),
        Panel(
            "Page faults",
            (Promql(_rate(PAGE_FAULTS, "kind"), "{{kind}}"),),
            rate_unit(PAGE_FAULTS),
            "Major faults waited for storage.",
        ),
        Panel(
            "Memory limit reached",
            (Promql(_rate(MEMORY_LIMIT_HITS, "instance"), "{{instance}}"),),
            rate_unit(MEMORY_LIMIT_HITS),
            "Number of times memory had to be reclaimed because of the limit.",
        ),
        heading("Input and output"),
        Panel(
            "All file systems",
            (
                Promql(_rate(PROCESS_IO_READ_BYTES, "instance"), "{{instance}} read"),
                Promql(_rate(PROCESS_IO_WRITTEN_BYTES, "instance"), "{{instance}} written"),
            ),
            rate_unit(PROCESS_IO_READ_BYTES),
            "By the job's processes, including network file systems; approximate.",
        ),
        Panel(
            "Block devices",
            (
                Promql(_rate(IO_READ_BYTES, "device"), "{{device}} read"),
                Promql(_rate(IO_WRITTEN_BYTES, "device"), "{{device}} written"),
            ),
            rate_unit(IO_READ_BYTES),
            "Below the page cache.",
        ),
        Panel(
            "Operations of block devices",
            (
                Promql(_rate(IO_READS, "device"), "{{device}} reads"),
                Promql(_rate(IO_WRITES, "device"), "{{device}} writes"),
            ),
            "iops",
        ),
        Panel(
            "Network",
            (
                Promql(_rate(NETWORK_RECEIVE_BYTES, "instance"), "{{instance}} received"),
                Promql(_rate(NETWORK_TRANSMIT_BYTES, "instance"), "{{instance}} sent"),
            ),
            rate_unit(NETWORK_RECEIVE_BYTES),
            "Only for jobs with their own network namespace, or on nodes with batchjob_helper.",
        ),
        heading("Waiting"),
        Panel(
            "Some task waited",
            (
                Promql(
                    _rate(WAITING_SECONDS, "instance, resource"),
                    "{{instance}} {{resource}}",
                ),
            ),
            rate_unit(WAITING_SECONDS),
            "Fraction of time in which at least one task waited (PSI).",
            maximum=1,
        ),
        Panel(
            "All tasks waited",
            (
                Promql(
                    _rate(STALLED_SECONDS, "instance, resource"),
                    "{{instance}} {{resource}}",
                ),
            ),
            rate_unit(STALLED_SECONDS),
            "Fraction of time in which all tasks of the job waited (PSI).",
            maximum=1,
        ),
        Panel(
            "Processes and threads",
            (
                Promql(_sum(PROCESSES), "{{instance}} processes"),
                Promql(_sum(THREADS), "{{instance}} threads"),
            ),
            unit(PROCESSES),
        ),
        Panel(
            "Open files",
            (Promql(_sum(OPEN_FILES), "{{instance}}"),),
            unit(OPEN_FILES),
            "If the exporter exposes the group `open-files`.",
        ),
        heading("GPU"),
        Panel(
            "GPU use",
            (
                Promql(
                    series(JOB_GPU_UTILIZATION, _HERE),
                    "{{instance}} {{gpu}} {{gpu_instance}}",
                ),
            ),
            unit(JOB_GPU_UTILIZATION),
            "Fraction of the last second in which any kernel ran.",
            maximum=1,
        ),
        Panel(
            "GPU memory",
            (
                Promql(
                    series(JOB_GPU_MEMORY, _HERE),
                    "{{instance}} {{gpu}} {{gpu_instance}}",
                ),
            ),
            unit(JOB_GPU_MEMORY),
            "Of the job's processes.",
        ),
        heading("Energy"),
        Panel(
            "Power",
            (Promql(_rate(ENERGY_JOULES, "component, kind"), "{{component}} {{kind}}"),),
            rate_unit(ENERGY_JOULES),
            "The job's share of the power of its nodes. Idle: power that its CPUs and GPUs "
            "would draw when idle.",
            stacked=True,
        ),
        Panel(
            "Emissions",
            (Promql(f"3600 * {_rate(EMISSIONS_GRAMS, 'provider')}", "{{provider}}"),),
            "massg",
            "Grams of CO2e per hour; figures of different providers must not be added up.",
        ),
    ),
    (
        Variable("cluster", "Cluster", "label_values(batchjob_job_info, cluster)"),
        Variable("job", "Job", 'label_values(batchjob_job_info{cluster="$cluster"}, jobid)'),
        Variable(
            "node",
            "Node",
            f"label_values(batchjob_job_info{{{_JOB}}}, instance)",
            every=True,
            several=True,
        ),
    ),
    since="now-1h",
    refresh="30s",
    links=(
        (
            "Page of this job",
            f"{PAGES}/jobs/${{job:percentencode}}?cluster=${{cluster:percentencode}}",
        ),
    ),
)
