"""The total of a counter from its samples, across resets."""

from collections.abc import Iterator, Sequence
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
    points: Sequence[tuple[float, float]], start: float, continues: bool = False
) -> Sequence[tuple[float, float]]:
    """The samples of the run that began at `start`.

    A counter that a rerun continues shows its predecessor's last value until the new run's
    processes exist; these first samples do not belong to the run. If the run `continues` one as a
    part of a resized job, the values are the growth since the last sample of the part before.
    """
    carried = next((value for at, value in reversed(points) if at < start), None)
    own = [point for point in points if point[0] >= start]
    if continues:
        return list(_growth(own, carried or 0.0))
    first = 0
    while carried is not None and first < len(own) and is_unchanged(own[first][1], carried):
        first += 1
    return own[first:]


def _growth(points: Sequence[tuple[float, float]], before: float) -> Iterator[tuple[float, float]]:
    """The growth of a counter since it had a value, across resets."""
    total = 0.0
    for at, value in points:
        total += value if is_reset(before, value) else max(0.0, value - before)
        before = value
        yield at, total


def total_of(
    points: Sequence[tuple[float, float]], start: float, continues: bool = False
) -> float | None:
    """The increase of a counter from `start` on, across resets; None without a sample."""
    own = [value for _, value in own_samples(points, start, continues)]
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
