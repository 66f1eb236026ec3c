"""The total of a counter from its samples, across resets."""

from collections.abc import Sequence
from itertools import pairwise

# VictoriaMetrics stores decimal mantissas, and sometimes returns a constant 5.070736989 as
# 5.070736988999999: that is not a reset. None of our counters decreases by so little.
_NOISE = 1e-9

CARRIED_SECONDS = 900  # how long before a rerun to look for the last value of the previous run


def is_reset(before: float, after: float) -> bool:
    """Whether a counter was reset between two samples."""
    return after < before - _NOISE * abs(before)


def is_unchanged(one: float, other: float) -> bool:
    """Whether a counter did not change between two samples."""
    return abs(one - other) <= _NOISE * max(abs(one), abs(other))


def own_samples(
    points: Sequence[tuple[float, float]], start: float
) -> Sequence[tuple[float, float]]:
    """The samples of the run that began at `start`.

    A counter that a rerun continues shows its predecessor's last value until the new run's
    processes exist; these first samples do not belong to the run.
    """
    carried = next((value for at, value in reversed(points) if at < start), None)
    own = [point for point in points if point[0] >= start]
    first = 0
    while carried is not None and first < len(own) and is_unchanged(own[first][1], carried):
        first += 1
    return own[first:]


def total_of(points: Sequence[tuple[float, float]], start: float) -> float | None:
    """The increase of a counter from `start` on, across resets; None without a sample."""
    own = [value for _, value in own_samples(points, start)]
    if not own:
        return None
    before_resets = sum(value for value, after in pairwise(own) if is_reset(value, after))
    return before_resets + own[-1]


def samples_around_resets(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The first and last sample, and those around each reset; their total is the same."""
    kept = {0, len(points) - 1} if points else set()
    for number, ((_, before), (_, after)) in enumerate(pairwise(points)):
        if is_reset(before, after):
            kept |= {number, number + 1}
    return [points[number] for number in sorted(kept)]
