"""How long an ended job ran and was suspended: one rule for the records of every source."""

from typing import NamedTuple


class RunTime(NamedTuple):
    """Seconds in which a job ran, and in which it was suspended; None if it never started."""

    elapsed_seconds: float | None
    suspended_seconds: int | None


def run_time(
    start: float | None,
    end: float | None,
    counted: float | None = None,
    suspended: float | None = None,
) -> RunTime:
    """The run time of an ended job.

    `counted` is the scheduler's own counter of run time, which stops while a job is suspended. It
    counts if the time from start to end has room for it (rounded times may be a second apart), also
    where it is shorter: a busy node starts a job after its recorded start. Otherwise the run time
    is that from start to end without the suspensions. `suspended` is what the records say of
    suspensions; if they say nothing, a difference to `counted` is taken for one.
    """
    if start is None or end is None:
        return RunTime(None, None)
    span = max(0.0, end - start)
    if counted is None or not 0 <= counted <= span + 1:
        known = min(span, suspended or 0)
        return RunTime(_whole(span - known), round(known))
    counted = min(counted, span)
    return RunTime(
        _whole(counted), round(min(span, span - counted if suspended is None else suspended))
    )


def _whole(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds
