"""CPU and memory of each running step, for schedulers that create a cgroup per step."""

from collections.abc import Callable, Iterable, Mapping

from batchjob.quantities.reading import CgroupReading, sum_readings
from batchjob.schedulers.layout import step_of
from collectors.jobs.cgroups.job_cgroup import CgroupFiles, JobCgroup
from collectors.jobs.cgroups.reader import child_names
from collectors.jobs.state.job import Job
from collectors.jobs.view import JobIdentity
from collectors.metric import NO_LABELS, Labels, Metric, MetricFamily, join, labels

_LABELS = ("manager", "jobid", "user", "step")


_Row = tuple[Callable[[CgroupReading], float | None], Labels]
"""A number of a step, and the labels that its sample has besides the step's."""

# fmt: off
STEP_METRICS: tuple[tuple[Metric, tuple[_Row, ...]], ...] = (
    (Metric("batchjob_job_step_cpu_seconds_total", "counter",
        "CPU time of a running step, including slurmstepd.", (*_LABELS, "mode")),
        ((lambda step: step.cpu_user_seconds, labels(mode="user")),
        (lambda step: step.cpu_system_seconds, labels(mode="system")))),
    (Metric("batchjob_job_step_memory_current_bytes", "gauge",
        "Memory charged to a running step, including page cache.", _LABELS),
        ((lambda step: step.memory_current, NO_LABELS),)),
    (Metric("batchjob_job_step_memory_peak_bytes", "gauge",
        "Maximum memory ever charged to a running step, including page cache.", _LABELS),
        ((lambda step: step.memory_peak, NO_LABELS),)),
)
# fmt: on
METRICS = tuple(metric for metric, _ in STEP_METRICS)


class Steps:
    """Keeps the directories of running steps open between scrapes. Used by one scrape at a time."""

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files
        self._cgroups: dict[tuple[Job, str, str], JobCgroup] = {}  # by job, step and path

    def families(self, jobs: Mapping[Job, JobIdentity], now: float) -> list[MetricFamily]:
        """Read every step of these jobs."""
        self._find_steps(jobs, now)
        steps: dict[Labels, list[CgroupReading]] = {}
        for (job, step, _), cgroup in self._cgroups.items():
            step_labels = join(jobs[job].name.labels, labels(step=step))
            steps.setdefault(step_labels, []).append(cgroup.read(now))
        readings = [
            (step_labels, sum_readings(step_readings))
            for step_labels, step_readings in steps.items()
        ]
        return [
            MetricFamily(metric, [sample for row in rows for sample in _samples(row, readings)])
            for metric, rows in STEP_METRICS
        ]

    def close(self) -> None:
        """Close all descriptors."""
        for cgroup in self._cgroups.values():
            cgroup.close()
        self._cgroups.clear()

    def _find_steps(self, jobs: Iterable[Job], now: float) -> None:
        previous, self._cgroups = self._cgroups, {}
        for job in jobs:
            for hierarchy, directory in job.directories():
                job_path = directory[len(hierarchy.root) + 1 :]
                for name in child_names(directory):
                    step = step_of(job.layout_match, name)
                    if step is None or step.name is None or step.role != "step":
                        continue
                    key = (job, step.name, f"{job_path}/{name}")
                    cgroup = self._cgroups.get(key) or previous.pop(key, None)
                    if cgroup is None:
                        cgroup = JobCgroup(key[2], job.layout_match, None, self._files)
                    cgroup.drop_removed(now)
                    cgroup.add(hierarchy)
                    self._cgroups[key] = cgroup
        for cgroup in previous.values():
            cgroup.close()


def _samples(
    row: _Row, readings: list[tuple[Labels, CgroupReading]]
) -> Iterable[tuple[Labels, float]]:
    read, own_labels = row
    for step_labels, reading in readings:
        value = read(reading)
        if value is not None:
            yield join(step_labels, own_labels), value
