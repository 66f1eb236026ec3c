"""CPU time per program inside a job, for scripts that run many tools."""

from collections.abc import Iterable

from collectors.jobs.processes.proc import Process

_MOST_NAMES = 1000  # a job may rename its processes at will


class ExecutableTotals:
    """Sums CPU seconds by program name over running and ended processes of one job.

    Only a process's own usage counts: its children have names of their own. Processes shorter than
    the time between two scans are not counted.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._before: dict[tuple[int, float], float] = {}

    def update(self, processes: Iterable[Process]) -> None:
        """Add the usage of each process since the last scan."""
        now = {}
        for process in processes:
            key = (process.pid, process.started)
            now[key] = process.own_cpu_seconds
            gain = process.own_cpu_seconds - self._before.get(key, 0.0)
            if process.program in self._seconds or len(self._seconds) < _MOST_NAMES:
                known = self._seconds.get(process.program, 0.0)
                self._seconds[process.program] = known + max(gain, 0.0)
        self._before = now

    def top(self, number: int) -> dict[str, float]:
        """The programs with the highest CPU time."""
        ranked = sorted(self._seconds.items(), key=lambda entry: -entry[1])
        return dict(ranked[:number])
