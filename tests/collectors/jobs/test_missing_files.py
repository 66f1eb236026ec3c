"""Each file of a tree is optional: without it only the numbers that it holds are absent."""

from pathlib import Path

import pytest

from batchjob_exporter import exposition
from collectors.jobs.collector import JobsCollector, JobsOptions
from collectors.jobs.processes.identifier import UserNames

# What a file of a process holds besides its own numbers. `stat` alone tells that it exists.
OF_PROCESSES = {
    "io": ("process_io",),
    "limits": ("open_files_limit",),
    "environ": ("job_info",),  # account, partition and so on
    "cmdline": ("job_info",),
    "status": (),
}
OF_CGROUPS = {
    "cpu": ("cpu_", "throttled"),  # with cpuset and cpu.stat's periods
    "cpuacct": ("cpu_seconds",),
    "cpuset": ("job_cpus",),
    "memory": ("memory", "page_faults", "oom_kills", "swap"),
    "io": ("job_io",),
    "pids": ("processes", "threads", "pids", "fork"),
}
TREES_OF_JOBS = ("nn01_slurmstepd.scope", "nn02_slurmstepd.scope", "jobid")
TREES = (
    "slurm-26.05-v2-sluid-io-pids-05-requeued-run-srun-salloc",
    "openpbs-23.06-v1-03-array-subjobs",
)


def exposed(host) -> set[str]:
    """The lines of an exposition, without the counts of failed reads."""
    no_names = UserNames(look_up=lambda uid: None)
    jobs = JobsCollector(host, JobsOptions(metrics=("cpu", "memory", "process-io")), no_names)
    jobs.update()
    text = exposition.render(jobs.collect()).decode()
    jobs.stop()
    return {
        line for line in text.splitlines() if not line.startswith(("#", "batchjob_job_read_errors"))
    }


def may_vanish(file: Path) -> tuple[str, ...]:
    if file.parent.name.isdigit():
        return OF_PROCESSES.get(file.name, ("",) if file.name == "stat" else ())
    return OF_CGROUPS.get(file.name.partition(".")[0], ())


@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("name", TREES)
def test_without_a_file_only_its_own_numbers_are_absent(tree, name, tmp_path):
    host = tree(name, copy=True)
    complete = exposed(host)
    assert len(complete) > 20
    pids = {path.name for path in Path(host.procfs).iterdir() if path.name.isdigit()}
    files = {
        *(file for pid in pids for file in (Path(host.procfs) / pid).iterdir() if file.is_file()),
        *(
            file
            for file in Path(host.cgroupfs).rglob("*.*")
            if file.parent.parent.name in TREES_OF_JOBS
        ),
    }
    for file in sorted(files):
        if file.name in ("cgroup.procs", "cgroup.controllers"):
            continue  # they are the lists of processes and the sign of version 2
        aside = tmp_path / "aside"
        file.rename(aside)
        missing = complete ^ exposed(host)
        aside.rename(file)
        unexpected = [
            line for line in missing if not any(word in line for word in may_vanish(file))
        ]
        assert not unexpected, f"{file}: {sorted(unexpected)[:5]}"
