"""Splitting the energy of the host and of GPUs between jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.energy.split import Claim, GpuClaim, split_gpu, split_host

CPUS, SECONDS = 64, 30

A = Claim(480, 32)


def total(split):
    return sum([*split.active.values(), *split.idle.values(), split.system, split.unallocated])


@pytest.mark.parametrize(
    ("joules", "idle_watts", "claims", "busy_seconds", "jobs", "system", "unallocated"),
    [
        (12000, 150, {"A": A, "B": Claim(240, 16)}, 750, {"A": 7050, "B": 3525}, 300, 1125),
        (12000, 0, {"A": A, "B": Claim(240, 16)}, 750, {"A": 7680, "B": 3840}, 480, 0),
        (4200, 150, {}, 0, {}, 0, 4200),
        (4500, 150, {"A": Claim(0, 32)}, 0, {"A": 2250}, 0, 2250),
        (
            12000,
            150,
            {"A": A, "B": Claim(300, 16)},
            750,
            {"A": 6865.384615, "B": 4009.615385},
            0,
            1125,
        ),
        (12000, 150, {"A": A, "B": Claim(240, 64)}, 750, {"A": 6300, "B": 5400}, 300, 0),
    ],
    ids=[
        "two jobs",
        "no idle power",
        "empty",
        "sleeping",
        "jobs exceed the node",
        "oversubscribed",
    ],
)
def test_host_energy_split(joules, idle_watts, claims, busy_seconds, jobs, system, unallocated):
    split = split_host(joules, idle_watts * SECONDS, CPUS, busy_seconds, claims)
    assert {job: split.active[job] + split.idle[job] for job in claims} == pytest.approx(jobs)
    assert split.system == pytest.approx(system)
    assert split.unallocated == pytest.approx(unallocated)


@pytest.mark.parametrize(
    ("claims", "jobs", "unallocated"),
    [
        ({"A": GpuClaim(1, None)}, {"A": (2000, 1000)}, 0),
        ({}, {}, 3000),
        (
            {"A": GpuClaim(0.5, None), "B": GpuClaim(0.5, None)},
            {"A": (1000, 500), "B": (1000, 500)},
            0,
        ),
        ({"A": GpuClaim(3 / 7, None)}, {"A": (6000 / 7, 3000 / 7)}, 12000 / 7),
        (
            {"A": GpuClaim(3 / 7, 0.5), "B": GpuClaim(2 / 7, 0.25)},
            {"A": (1500, 3000 / 7), "B": (500, 2000 / 7)},
            2000 / 7,
        ),
        ({"A": GpuClaim(0.4, 0.0)}, {"A": (800, 400)}, 1800),
        ({"A": GpuClaim(1, None, 0.1)}, {"A": (2000, 100)}, 900),
        (
            {"A": GpuClaim(1, None, 0.6), "B": GpuClaim(1, None, 0.2)},
            {"A": (1500, 600), "B": (500, 200)},
            200,
        ),
        ({"A": GpuClaim(3 / 7, None, 0.5)}, {"A": (6000 / 7, 1500 / 7)}, 13500 / 7),
    ],
    ids=[
        "whole GPU", "unallocated", "shared", "one instance", "instances at work", "idle instance",
        "short job", "one after the other", "short job of an instance",
    ],
)  # fmt: skip
def test_gpu_energy_split(claims, jobs, unallocated):
    split = split_gpu(3000, 1000, claims)
    for job, (active, idle) in jobs.items():
        assert split.active[job] == pytest.approx(active)
        assert split.idle[job] == pytest.approx(idle)
    assert split.unallocated == pytest.approx(unallocated)
    assert total(split) == pytest.approx(3000)


def test_gpu_energy_of_jobs_that_followed_one_another_goes_by_time_held():
    """The activity of the reading at the start is the first job's; the second came after it."""
    claims = {"first": GpuClaim(1.0, 0.9, 0.1), "second": GpuClaim(1.0, 0.0, 0.6)}
    split = split_gpu(6000, 1000, claims)
    assert split.active == pytest.approx({"first": 5000 / 7, "second": 5000 * 6 / 7})
    assert split.idle == pytest.approx({"first": 100, "second": 600})
    assert split.unallocated == pytest.approx(300)


def test_gpu_energy_of_a_short_job_without_known_idle_power():
    split = split_gpu(3000, 0, {"A": GpuClaim(1, None, 0.1)})
    assert (split.active["A"], split.unallocated) == (pytest.approx(300), pytest.approx(2700))


energies = st.floats(0, 1e7)
jobs = st.dictionaries(
    st.integers(0, 50), st.builds(Claim, st.floats(0, 1e5), st.floats(0, 1024)), max_size=20
)
ratios = st.floats(0, 1)
gpu_jobs = st.dictionaries(
    st.integers(0, 9),
    st.builds(GpuClaim, ratios, st.none() | ratios, ratios, st.none() | ratios),
    max_size=8,
)


@given(energies, energies, st.integers(1, 1024), st.floats(0, 1e5), jobs)
def test_host_energy_is_conserved(joules, idle, cpus, busy_seconds, claims):
    split = split_host(joules, idle, cpus, busy_seconds, claims)
    assert total(split) == pytest.approx(joules, rel=1e-9, abs=1e-9)
    assert min([0, *split.active.values(), *split.idle.values()]) == 0
    assert split.system >= 0
    assert split.unallocated >= 0


@given(energies, energies, gpu_jobs)
def test_gpu_energy_is_conserved(joules, idle, claims):
    split = split_gpu(joules, idle, claims)
    assert total(split) == pytest.approx(joules, rel=1e-9, abs=1e-9)
    assert split.unallocated >= 0
