"""The exporters of a run's nodes: the collector of jobs over directories that tell the truth.

The directories and processes are files; everything else is the exporter's own. What it shows is a
place like others.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchjob_exporter import exposition
from tests.collectors.jobs.nodes import SCOPE, Node, samples, wait_until
from tests.life.looked import Looked
from tests.life.truth import NODES, WRITTEN, Run, Subject, cpu_seconds, memory_bytes

_SAMPLE = re.compile(r"batchjob_job_(\w+)\{(.*)\} (\S+)( \d+)?")
_GROUPS = ("cpu", "memory", "process-io")
_PID, _UID = 10, 2001


class SimulatedExporter:
    """Of one node, at which one run is at a time."""

    def __init__(self, folder: Path, name: str, runs: Sequence[Run]) -> None:
        self._name, self._runs = name, runs
        self._node = Node(folder / name)
        self._boot = min(run.submit for run in runs) - 1000
        (self._node.proc / "stat").write_text(f"btime {self._boot}\n")
        self._node.now = self._boot + 500
        # No thread looks at processes: time jumps, and a look under way would seem stuck.
        self._jobs = self._node.watching_collector(metrics=_GROUPS, linger=300.0)
        self._there: Run | None = None
        self._seen: list[Run] = []

    def close(self) -> None:
        """Close its files."""
        self._jobs.stop()

    def lines(self, now: int) -> list[str]:
        """What it shows at a time."""
        for run in self._runs:
            if run.start < now:
                self._bring(run, min(now, run.end), now)
        self._node.now = now
        text = exposition.render(self._jobs.collect()).decode()
        samples = (line for line in text.splitlines() if not line.startswith("#"))
        return [line.replace("{", f'{{instance="{self._name}:10910",', 1) for line in samples]

    def _bring(self, run: Run, at: int, now: int) -> None:
        """Have the run's directory tell of this time; of its end at the last."""
        if self._there is not run and run not in self._seen:
            self._begin(run)
        if self._there is run:
            self._tell(run, at)
            if now >= run.end:
                self._end(run)

    def _begin(self, run: Run) -> None:
        self._node.now = run.start + 1
        self._there = run
        self._seen.append(run)
        self._node.add_job(f"job_{run.jobid}", pids=[_PID])
        environ = f"SLURM_JOB_ID={run.jobid}\0SLURM_JOB_USER={run.user}\0".encode()
        started = 100 * (run.start - self._boot)
        self._node.add_process(_PID, _UID, environ=environ, started=started)
        self._jobs.update()

    def _tell(self, run: Run, at: int) -> None:
        seconds = run.active(at)
        job = self._node.cgroup / SCOPE / f"job_{run.jobid}"
        cpu = int(1e6 * cpu_seconds(self._name, seconds))
        self._node.set_cpu(job, (9 * cpu // 10, cpu - 9 * cpu // 10))
        for file in ("memory.current", "memory.peak"):
            (job / file).write_text(f"{int(memory_bytes(self._name, seconds))}\n")
        io = self._node.proc / str(_PID) / "io"
        written = int(WRITTEN * seconds)
        io.write_text(f"read_bytes: 0\nwrite_bytes: {written}\nrchar: 0\nwchar: 0\n")
        self._node.now = at  # at last: what was looked at at a time is not looked at again
        wait_until(lambda: self._shows(run.jobid, written))

    def _shows(self, jobid: str, written: int) -> bool:
        """Whether its processes were looked at since."""
        self._jobs.update()
        return samples(self._jobs).get(("process_io_written_bytes_total", jobid)) == written

    def _end(self, run: Run) -> None:
        job = self._node.cgroup / SCOPE / f"job_{run.jobid}"
        shutil.rmtree(job)
        self._node.remove_process(_PID)
        wait_until(lambda: ("end_time_seconds", run.jobid) in samples(self._jobs))
        self._there = None


def exporter(site: Looked, run: Subject) -> dict[str, Any]:
    """What the nodes' exporters show of a run, ended ones while they linger."""
    lines, now = site.scraped(), site.now()
    if now <= run.start:
        return {}
    numbers: dict[str, list[float]] = {}
    for line in lines:
        found = _SAMPLE.match(line)
        if found and f'jobid="{run.jobid}"' in found[2]:
            numbers.setdefault(found[1], []).append(float(found[3]))
    if not numbers and now > run.end:
        return {}
    written = numbers.get("process_io_written_bytes_total")
    return {
        "cpu_seconds": sum(numbers.get("cpu_seconds_total", ())) or None,
        "memory_bytes": sum(numbers.get("memory_peak_bytes", ())) or None,
        "written_bytes": sum(written) if written else None,
        "until": min(now, run.end),
    }


def of_nodes(folder: Path, runs: Sequence[Run]) -> list[SimulatedExporter]:
    """One for each node of the runs."""
    return [SimulatedExporter(folder, name, runs) for name in NODES]
