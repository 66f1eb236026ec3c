"""CPU time per program inside a job: where the time goes in a script of many tools."""

from collections.abc import Iterable

from collectors.jobs.processes.proc import Process

_MOST_NAMES = 1000  # a job may rename its processes at will


class ExecutableTotals:
    """Sums CPU seconds by program name over living and ended processes of one job.

    Only what the processes used themselves counts: their children have names of their own. A
    process shorter than the time between two looks is in nobody's sum.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._before: dict[tuple[int, float], float] = {}

    def update(self, processes: Iterable[Process]) -> None:
        """Add what each process has used since the last look."""
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
        """The programs that used most."""
        ranked = sorted(self._seconds.items(), key=lambda entry: -entry[1])
        return dict(ranked[:number])
