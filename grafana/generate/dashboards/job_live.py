"""One job as Prometheus has it: at full resolution, and by the user's own right alone."""

from grafana.generate.model import PAGES, Dashboard, Panel, Promql, Variable

_JOB = 'cluster="$cluster",jobid="$job"'
_HERE = f'{_JOB},instance=~"$node"'


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate(batchjob_job_{metric}{{{_HERE}{more}}}[$__rate_interval]))"


def _sum(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (batchjob_job_{metric}{{{_HERE}}})"


def _stat(title: str, unit: str, about: str, expr: str, *warn: float) -> Panel:
    return Panel(title, (Promql(expr, title, instant=True),), unit, about, "stat", 4, 4, warn=warn)


def _row(title: str) -> Panel:
    return Panel(title, kind="row")


DASHBOARD = Dashboard(
    "job-live",
    "Job, live",
    "One of your jobs, with each sample that Prometheus has.",
    (
        _stat("CPUs held", "none", "Over all nodes.", f"sum(batchjob_job_cpus{{{_JOB}}})"),
        _stat(
            "CPU use",
            "percentunit",
            "Of the CPUs held, over the last five minutes.",
            f"sum(rate(batchjob_job_cpu_seconds_total{{{_JOB}}}[5m]))"
            f" / sum(batchjob_job_cpus{{{_JOB}}})",
        ),
        _stat(
            "Memory",
            "percentunit",
            "Of the limit, on the node nearest to it; without page cache, which can be given back.",
            f"max((batchjob_job_memory_anon_bytes{{{_JOB}}}"
            f" + batchjob_job_memory_shmem_bytes{{{_JOB}}})"
            f" / (batchjob_job_memory_limit_bytes{{{_JOB}}} > 0))",
            0.8,
            0.95,
        ),
        _stat(
            "Killed for memory",
            "none",
            "Processes that the kernel ended.",
            f"sum(batchjob_job_oom_kills_total{{{_JOB}}})",
            1,
        ),
        _stat(
            "Energy",
            "joule",
            "So far, with the job's part of idle power.",
            f"sum(batchjob_job_energy_joules_total{{{_JOB}}})",
        ),
        _stat(
            "Emissions",
            "massg",
            "So far, in CO2e, by provider of the emission factor.",
            f"sum by (provider) (batchjob_job_emissions_grams_total{{{_JOB}}})",
        ),
        _row("CPU"),
        Panel(
            "CPUs in use",
            (
                Promql(_rate("cpu_seconds_total", "instance"), "{{instance}}"),
                Promql(_sum("cpus"), "{{instance}} held"),
            ),
            "none",
            "By node.",
        ),
        Panel(
            "User and system",
            (Promql(_rate("cpu_seconds_total", "mode"), "{{mode}}"),),
            "none",
            "System time is the kernel's, for the job.",
            stacked=True,
        ),
        Panel(
            "Held back by a quota",
            (Promql(_rate("cpu_throttled_seconds_total", "instance"), "{{instance}}"),),
            "percentunit",
            "Of each second; CPUs add up. Where the exporter shows the group `throttling`.",
        ),
        Panel(
            "Programs",
            (Promql(_rate("executable_cpu_seconds_total", "executable"), "{{executable}}"),),
            "none",
            "CPUs in use by the busiest programs, where the exporter counts them.",
            stacked=True,
        ),
        _row("Memory"),
        Panel(
            "Memory by node",
            (
                Promql(_sum("memory_current_bytes"), "{{instance}}"),
                Promql(_sum("memory_limit_bytes"), "{{instance}} limit"),
            ),
            "bytes",
            "Charged to the job, with page cache, which is given back when the limit is reached.",
        ),
        Panel(
            "What it is",
            tuple(
                Promql(f"sum(batchjob_job_memory_{part}_bytes{{{_HERE}}})", name)
                for part, name in (
                    ("anon", "heap and stack"),
                    ("shmem", "shared memory"),
                    ("swap", "swap"),
                    ("file", "page cache"),
                )
            ),
            "bytes",
            "Over the nodes chosen. Page cache has shared memory in it.",
        ),
        Panel(
            "Page faults",
            (Promql(_rate("page_faults_total", "kind"), "{{kind}}"),),
            "ops",
            "Major ones waited for storage.",
        ),
        Panel(
            "At the limit",
            (Promql(_rate("memory_limit_hits_total", "instance"), "{{instance}}"),),
            "ops",
            "How often memory had to be given back before more could be had.",
        ),
        _row("Input and output"),
        Panel(
            "All file systems",
            (
                Promql(_rate("process_io_read_bytes_total", "instance"), "{{instance}} read"),
                Promql(_rate("process_io_written_bytes_total", "instance"), "{{instance}} written"),
            ),
            "Bps",
            "By the job's processes, network file systems included; approximate.",
        ),
        Panel(
            "Block devices",
            (
                Promql(_rate("io_read_bytes_total", "device"), "{{device}} read"),
                Promql(_rate("io_written_bytes_total", "device"), "{{device}} written"),
            ),
            "Bps",
            "Below the page cache.",
        ),
        Panel(
            "Operations of block devices",
            (
                Promql(_rate("io_reads_total", "device"), "{{device}} reads"),
                Promql(_rate("io_writes_total", "device"), "{{device}} writes"),
            ),
            "iops",
        ),
        Panel(
            "Network",
            (
                Promql(_rate("network_receive_bytes_total", "instance"), "{{instance}} received"),
                Promql(_rate("network_transmit_bytes_total", "instance"), "{{instance}} sent"),
            ),
            "Bps",
            "Only of jobs with a network namespace of their own.",
        ),
        _row("Waiting"),
        Panel(
            "Some task waited",
            (
                Promql(
                    _rate("pressure_waiting_seconds_total", "instance, resource"),
                    "{{instance}} {{resource}}",
                ),
            ),
            "percentunit",
            "Part of the time in which at least one task waited (PSI).",
            most=1,
        ),
        Panel(
            "All tasks waited",
            (
                Promql(
                    _rate("pressure_stalled_seconds_total", "instance, resource"),
                    "{{instance}} {{resource}}",
                ),
            ),
            "percentunit",
            "Part of the time in which nothing of the job went on (PSI).",
            most=1,
        ),
        Panel(
            "Processes and threads",
            (
                Promql(_sum("processes"), "{{instance}} processes"),
                Promql(_sum("threads"), "{{instance}} threads"),
            ),
            "none",
        ),
        Panel(
            "Open files",
            (Promql(_sum("open_files"), "{{instance}}"),),
            "none",
            "Where the exporter shows the group `open-files`.",
        ),
        _row("GPU"),
        Panel(
            "GPU use",
            (
                Promql(
                    f"batchjob_job_gpu_utilization_ratio{{{_HERE}}}",
                    "{{instance}} {{gpu}} {{gpu_instance}}",
                ),
            ),
            "percentunit",
            "Part of the last second in which any kernel ran.",
            most=1,
        ),
        Panel(
            "GPU memory",
            (
                Promql(
                    f"batchjob_job_gpu_memory_bytes{{{_HERE}}}",
                    "{{instance}} {{gpu}} {{gpu_instance}}",
                ),
            ),
            "bytes",
            "Of the job's processes.",
        ),
        _row("Energy"),
        Panel(
            "Power",
            (Promql(_rate("energy_joules_total", "component, kind"), "{{component}} {{kind}}"),),
            "watt",
            "The job's part of its nodes' power. Idle: what its CPUs and GPUs would take at rest.",
            stacked=True,
        ),
        Panel(
            "Emissions",
            (Promql(f"3600 * {_rate('emissions_grams_total', 'provider')}", "{{provider}}"),),
            "massg",
            "Grams of CO2e an hour. Figures of different providers are not to be added up.",
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
