"""Exporters of a run's nodes: the real collector of jobs reads files with the true usage.

Cgroups and processes are simulated by files. The samples are one of the views.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchjob_exporter import exposition
from tests.collectors.jobs.nodes import SCOPE, Node, samples
from tests.helpers.waiting import until
from tests.life.ground_truth import (
    NODES,
    WRITTEN_BYTES_PER_SECOND,
    KnownRun,
    ScriptedRun,
    cpu_seconds,
    memory_bytes,
)
from tests.life.observed_site import ObservedSite

_SAMPLE = re.compile(r"batchjob_job_(\w+)\{(.*)\} (\S+)( \d+)?")
_GROUPS = ("cpu", "memory", "process-io")
_PID, _UID = 10, 2001


class SimulatedExporter:
    """The exporter of one node, on which one run is active at a time."""

    def __init__(self, folder: Path, name: str, runs: Sequence[ScriptedRun]) -> None:
        self._name, self._runs = name, runs
        self._node = Node(folder / name)
        self._boot_time = min(run.submit for run in runs) - 1000
        (self._node.proc / "stat").write_text(f"btime {self._boot_time}\n")
        self._node.now = self._boot_time + 500
        # Without a thread for processes: time jumps, and a scan in progress would seem stuck.
        self._jobs = self._node.watching_collector(metrics=_GROUPS, linger=300.0)
        self._current_run: ScriptedRun | None = None
        self._started_runs: list[ScriptedRun] = []

    def close(self) -> None:
        """Close its files."""
        self._jobs.stop()

    def sample_lines(self, now: int) -> list[str]:
        """The samples at a time."""
        for run in self._runs:
            if run.start < now:
                self._advance(run, min(now, run.end), now)
        self._node.now = now
        text = exposition.render(self._jobs.collect()).decode()
        samples = (line for line in text.splitlines() if not line.startswith("#"))
        return [line.replace("{", f'{{instance="{self._name}:10910",', 1) for line in samples]

    def _advance(self, run: ScriptedRun, at: int, now: int) -> None:
        """Update the files of the run to a time; remove them after its end."""
        if self._current_run is not run and run not in self._started_runs:
            self._start_job(run)
        if self._current_run is run:
            self._write_usage(run, at)
            if now >= run.end:
                self._remove_job(run)

    def _start_job(self, run: ScriptedRun) -> None:
        self._node.now = run.start + 1
        self._current_run = run
        self._started_runs.append(run)
        self._node.add_job(f"job_{run.jobid}", pids=[_PID])
        environ = f"SLURM_JOB_ID={run.jobid}\0SLURM_JOB_USER={run.user}\0".encode()
        started = 100 * (run.start - self._boot_time)
        self._node.add_process(_PID, _UID, environ=environ, started=started)
        self._jobs.update()

    def _write_usage(self, run: ScriptedRun, at: int) -> None:
        seconds = run.active_seconds(at)
        job = self._node.cgroup / SCOPE / f"job_{run.jobid}"
        cpu = int(1e6 * cpu_seconds(self._name, seconds))
        self._node.set_cpu(job, (9 * cpu // 10, cpu - 9 * cpu // 10))
        for file in ("memory.current", "memory.peak"):
            (job / file).write_text(f"{int(memory_bytes(self._name, seconds))}\n")
        io = self._node.proc / str(_PID) / "io"
        written = int(WRITTEN_BYTES_PER_SECOND * seconds)
        io.write_text(f"read_bytes: 0\nwrite_bytes: {written}\nrchar: 0\nwchar: 0\n")
        self._node.now = at  # last: processes are scanned once for each time
        until(lambda: self._is_collected(run.jobid, written))

    def _is_collected(self, jobid: str, written: int) -> bool:
        """Whether the collector has scanned its processes since."""
        self._jobs.update()
        return samples(self._jobs).get(("process_io_written_bytes_total", jobid)) == written

    def _remove_job(self, run: ScriptedRun) -> None:
        job = self._node.cgroup / SCOPE / f"job_{run.jobid}"
        shutil.rmtree(job)
        self._node.remove_process(_PID)
        until(lambda: ("end_time_seconds", run.jobid) in samples(self._jobs))
        self._current_run = None


def exporter_view(site: ObservedSite, run: KnownRun) -> dict[str, Any]:
    """The samples of the nodes' exporters; those of ended runs while they linger."""
    lines, now = site.scraped_samples(), site.now()
    if now <= run.start:
        return {}
    values: dict[str, list[float]] = {}
    for line in lines:
        match = _SAMPLE.match(line)
        if match and f'jobid="{run.jobid}"' in match[2]:
            values.setdefault(match[1], []).append(float(match[3]))
    if not values and now > run.end:
        return {}
    written = values.get("process_io_written_bytes_total")
    return {
        "cpu_seconds": sum(values.get("cpu_seconds_total", ())) or None,
        "memory_bytes": sum(values.get("memory_peak_bytes", ())) or None,
        "written_bytes": sum(written) if written else None,
        "until": min(now, run.end),
    }


def node_exporters(folder: Path, runs: Sequence[ScriptedRun]) -> list[SimulatedExporter]:
    """One exporter for each node of the runs."""
    return [SimulatedExporter(folder, name, runs) for name in NODES]
