"""Energy of a GPU whose power was read all the time, divided among the jobs of the interval."""

import pytest

from collectors.energy.split import gpu_claims, split_gpu
from collectors.jobs.view import JobCpu, make_name
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare

A, B = make_name("slurm", "1", "alice"), make_name("slurm", "2", "bob")
IDLE_WATTS, BUSY_WATTS = 78.0, 700.0
INTERVAL = 10.0


def split(*lives, busy=(), end=INTERVAL, shares=(1.0, 1.0), power=True, claims=()):
    """Energy of 10 s in which the GPU is busy in the given spans."""
    jobs = {
        name: JobCpu(name, 0.0, 1.0, ended, started)
        for name, (started, ended) in zip((A, B), lives, strict=False)
    }
    points, joules = [(0.0, 0.0)], 0.0
    for step in range(1, int(end * 10) + 1):
        at = step / 10
        is_busy = any(began < at - 0.05 < ended for began, ended in busy)
        joules += (BUSY_WATTS if is_busy else IDLE_WATTS) / 10
        points.append((at, joules))
    shares = tuple(
        GpuEnergyShare(name, share, confirmed=name not in claims)
        for name, share in zip(jobs, shares, strict=False)
    )
    earlier = GpuEnergyReading("GPU-0", 0.0, 0.0, 0, ())
    later = GpuEnergyReading("GPU-0", INTERVAL, joules, 0, shares, tuple(points) if power else ())
    found = split_gpu(joules, IDLE_WATTS * INTERVAL, gpu_claims(earlier, later, jobs))
    of_jobs = sum(joules_of(found, name) for name in jobs)
    assert of_jobs + found.unallocated == pytest.approx(joules)
    return found


def joules_of(found, name):
    return found.active[name] + found.idle[name]


@pytest.mark.parametrize("began", [0.3, 4.0, 9.2])
def test_job_of_half_a_second_has_what_it_took(began):
    found = split((began, began + 0.5), busy=[(began, began + 0.5)])
    assert joules_of(found, A) == pytest.approx(BUSY_WATTS * 0.5, rel=0.1)
    assert found.idle[A] == pytest.approx(IDLE_WATTS * 0.5)
    assert found.unallocated == pytest.approx(IDLE_WATTS * 9.5, rel=0.05)


def test_busy_job_does_not_pay_for_the_idle_one_before_it():
    found = split((0.0, 5.0), (5.0, None), busy=[(5.0, 10.0)])
    assert joules_of(found, A) == pytest.approx(IDLE_WATTS * 5)
    assert joules_of(found, B) == pytest.approx(BUSY_WATTS * 5)
    assert found.unallocated == pytest.approx(0)


def test_holders_at_the_same_time_pay_by_share():
    found = split((0.0, None), (0.0, None), busy=[(0.0, 10.0)], shares=(0.5, 0.5))
    assert joules_of(found, A) == joules_of(found, B) == pytest.approx(BUSY_WATTS * 5)


def test_power_that_was_not_read_to_the_end_divides_nothing():
    gap = split((0.0, 5.0), (5.0, None), busy=[(5.0, 10.0)], end=8.0)
    by_time = split((0.0, 5.0), (5.0, None), busy=[(5.0, 10.0)], end=8.0, power=False)
    assert gap == by_time


def test_job_that_only_names_the_gpu_takes_nothing_from_its_holder():
    """It has the idle energy of the time before the holder came."""
    found = split((4.0, None), (0.0, None), busy=[(4.0, 10.0)], claims=[B])
    assert joules_of(found, A) == pytest.approx(BUSY_WATTS * 6, rel=0.01)
    assert joules_of(found, B) == pytest.approx(IDLE_WATTS * 4, rel=0.01)


def test_gpu_is_shared_only_while_both_hold_it():
    """Each held all of it while it was alone."""
    found = split((0.0, 6.0), (4.0, 8.0), busy=[(0.0, 8.0)])
    assert joules_of(found, A) == pytest.approx(BUSY_WATTS * 5, rel=0.01)
    assert joules_of(found, B) == pytest.approx(BUSY_WATTS * 3, rel=0.01)
    assert found.unallocated == pytest.approx(IDLE_WATTS * 2, rel=0.01)


@pytest.mark.parametrize("of_b", [0.5, 0.75])
def test_holder_that_others_join_has_what_their_shards_leave(of_b):
    """Of the time before, it has all, which is then its largest share."""
    found = split((0.0, 10.0), (4.0, 10.0), busy=[(0.0, 10.0)], shares=(1.0, of_b))
    assert joules_of(found, A) == pytest.approx(BUSY_WATTS * (4 + 6 * (1 - of_b)), rel=0.01)
    assert joules_of(found, B) == pytest.approx(BUSY_WATTS * 6 * of_b, rel=0.01)
