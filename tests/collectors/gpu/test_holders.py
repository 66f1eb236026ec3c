"""The map between jobs and GPUs: holders, users, shares and conflicts."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu.allocation import AllocationContext
from collectors.gpu.devices import Gpu, GpuTable, Instance
from collectors.gpu.holders import GpuMap, build_map
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobHolder, JobName
from collectors.metric import labels


def plain_gpu(index):
    return Gpu("nvidia", index, f"GPU-{index}", index, f"00000000:{index}B:00.0", "H100")


INSTANCES = (Instance("MIG-1", 1, 0, "3g.40gb", 3), Instance("MIG-2", 2, 0, "4g.40gb", 4))
SLICED = Gpu("nvidia", 0, "GPU-0", 0, "00000000:0B:00.0", "H100", True, 7, INSTANCES)


def job(jobid, environ=None, pids=(), manager="slurm"):
    name = JobName(manager, jobid, "alice", labels(manager=manager, jobid=jobid, user="alice"))
    environs = () if environ is None else ({"SLURM_JOB_NUM_NODES": "1"} | environ,)
    return JobHolder(name, 1000, pids, environs, ())


def slurm_gpus(*gpus, **more):
    return {"SLURM_JOB_GPUS": ",".join(map(str, gpus))} | more


def reading(gpu, utilization=None, processes=()):
    values = {} if utilization is None else {UTILIZATION: utilization}
    return GpuReading(gpu, values, {}, processes)


class Use(NamedTuple):
    """What the map says of a job and a unit."""

    source: str
    share: float | None
    processes: int | None = None
    memory: float | None = None
    utilization: float | None = None


def unit_name(unit):
    return f"{unit.gpu.index}.{unit.gpu_instance}".rstrip(".")


def map_jobs(jobs, readings=(), gpus=(), prolog=None):
    context = AllocationContext(
        GpuTable(gpus or (plain_gpu(0), plain_gpu(1))), prolog or {}, None, "gpu01"
    )
    found = build_map(jobs, context, {each.gpu.uuid: each for each in readings})
    uses = {
        (each.job.jobid, unit_name(each.unit)): Use(
            each.source, each.share, each.processes, each.memory_bytes, each.utilization
        )
        for each in found.holdings
    }
    assert len(uses) == len(found.holdings)
    return uses, sorted((kind, job.jobid) for kind, job, _ in found.conflicts)


def test_idle_gpu_keeps_its_holder():
    uses, conflicts = map_jobs(
        [job("1", slurm_gpus(0, 1))], [reading(plain_gpu(0), 0.0), reading(plain_gpu(1), 0.0)]
    )
    idle = Use("SLURM_JOB_GPUS", 1.0, 0, 0.0, 0.0)
    assert uses == {("1", "0"): idle, ("1", "1"): idle}
    assert not conflicts


def test_gpu_without_reading_keeps_its_holder():
    uses, _ = map_jobs([job("1", slurm_gpus(0))], [])
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0)}


def test_exclusive_holder_has_the_utilization_of_the_gpu():
    processes = (GpuProcess(10, 5e9), GpuProcess(11, 1e9))
    uses, _ = map_jobs([job("1", slurm_gpus(0), (10, 11))], [reading(plain_gpu(0), 0.9, processes)])
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0, 2, 6e9, 0.9)}


def test_foreign_processes_are_not_counted_for_the_holder():
    uses, _ = map_jobs(
        [job("1", slurm_gpus(0))], [reading(plain_gpu(0), 0.9, (GpuProcess(99, 5e9),))]
    )
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0, 0, 0.0, None)}


def test_partly_unknown_memory_is_unknown():
    processes = (GpuProcess(10, 5e9), GpuProcess(11, None))
    uses, _ = map_jobs([job("1", slurm_gpus(0), (10, 11))], [reading(plain_gpu(0), 0.9, processes)])
    assert uses["1", "0"].memory is None
    assert uses["1", "0"].processes == 2


def test_jobs_known_by_processes_share_the_gpu_equally():
    processes = (GpuProcess(10, 5e9), GpuProcess(20, 1e9))
    jobs = [job("1", None, (10,), "lsf"), job("2", None, (20,), "lsf")]
    uses, conflicts = map_jobs(jobs, [reading(plain_gpu(0), 0.9, processes)])
    assert uses == {
        ("1", "0"): Use("process", 0.5, 1, 5e9, None),
        ("2", "0"): Use("process", 0.5, 1, 1e9, None),
    }
    assert not conflicts


def test_job_using_the_gpu_of_another_has_no_share():
    processes = (GpuProcess(10, 5e9), GpuProcess(20, 1e9))
    jobs = [job("1", slurm_gpus(0), (10,)), job("2", slurm_gpus(1), (20,))]
    uses, conflicts = map_jobs(jobs, [reading(plain_gpu(0), 0.9, processes)])
    assert uses["1", "0"] == Use("SLURM_JOB_GPUS", 1.0, 1, 5e9, None)
    assert uses["2", "0"] == Use("process", None, 1, 1e9, None)
    assert uses["2", "1"] == Use("SLURM_JOB_GPUS", 1.0)
    assert conflicts == [("process", "2")]


def test_job_of_another_gpu_holds_the_one_that_it_uses_and_another_only_names():
    jobs = [job("1", slurm_gpus(0)), job("2", slurm_gpus(1), (10,))]
    found, _ = map_confirmed(jobs, ON_GPU_0)
    holds = [x for x in found.holdings if x.unit.gpu.index == 0]
    assert [(x.job.jobid, x.share, x.confirmed) for x in holds] == [
        ("1", None, False), ("2", 1.0, True),
    ]  # fmt: skip
    kinds = {(kind, job.jobid) for kind, job, _ in found.conflicts}
    assert kinds == {("unconfirmed", "1"), ("process", "2")}


def test_job_without_allocation_gets_no_share_of_an_allocated_gpu():
    jobs = [job("1", slurm_gpus(0)), job("2", None, (20,))]
    used = [reading(plain_gpu(0), 0.9, (GpuProcess(20, 1e9),))]
    uses, _ = map_jobs(jobs, used, prolog={"1": frozenset({"0"})})
    assert uses["1", "0"].share == 1.0
    assert uses["2", "0"].share is None


def test_claim_of_the_environment_takes_nothing_from_a_job_known_by_its_process():
    jobs = [job("1", slurm_gpus(0)), job("2", None, (10,))]
    found, holds = map_confirmed(jobs, ON_GPU_0)
    assert holds == {"1": (None, False), "2": (1.0, True)}
    assert [(kind, job.jobid) for kind, job, _ in found.conflicts] == [("unconfirmed", "1")]


@pytest.mark.parametrize(
    ("what", "first", "second", "expected"),
    [
        ("whole twice", {}, {}, (0.5, 0.5)),
        ("shards", {"S": "2"}, {"S": "6"}, (0.25, 0.75)),
        ("MPS", {"M": "25"}, {"M": "75"}, (0.25, 0.75)),
        ("MPS that does not add up to the GPU", {"M": "10"}, {"M": "30"}, (0.25, 0.75)),
        ("MPS beside a whole holder", {"M": "25"}, {}, (0.2, 0.8)),
        ("nonsense", {"S": "many", "M": "-1"}, {"M": "nan"}, (0.5, 0.5)),
    ],
)
def test_shares(what, first, second, expected):
    names = {"S": "SLURM_SHARDS_ON_NODE", "M": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
    jobs = [
        job(str(n), slurm_gpus(0, **{names[k]: v for k, v in variables.items()}))
        for n, variables in enumerate((first, second))
    ]
    uses, conflicts = map_jobs(jobs)
    assert (uses["0", "0"].share, uses["1", "0"].share) == pytest.approx(expected)
    overlap = [("overlap", "0"), ("overlap", "1")]
    assert conflicts == (overlap if what in ("whole twice", "nonsense") else [])


def test_shards_of_a_single_holder_are_the_whole_gpu():
    uses, _ = map_jobs([job("1", slurm_gpus(0, SLURM_SHARDS_ON_NODE="2"))])
    assert uses["1", "0"].share == 1.0


def test_mps_percentage_of_a_single_holder_is_ignored():
    uses, _ = map_jobs([job("1", slurm_gpus(0, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="1"))])
    assert uses["1", "0"].share == 1.0


def test_mig_instances_are_held_separately():
    processes = (GpuProcess(10, 5e9, 1, 0), GpuProcess(20, 1e9, 2, 0))
    jobs = [
        job("1", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, (10,)),
        job("2", {"CUDA_VISIBLE_DEVICES": "MIG-2"}, (20,)),
    ]
    uses, conflicts = map_jobs(jobs, [reading(SLICED, None, processes)], [SLICED])
    assert uses == {
        ("1", "0.1"): Use("CUDA_VISIBLE_DEVICES", 1.0, 1, 5e9, None),
        ("2", "0.2"): Use("CUDA_VISIBLE_DEVICES", 1.0, 1, 1e9, None),
    }
    assert not conflicts


def test_process_on_an_unknown_instance_is_not_counted():
    jobs = [job("1", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, (10,))]
    uses, _ = map_jobs(jobs, [reading(SLICED, None, (GpuProcess(10, 5e9),))], [SLICED])
    assert uses == {("1", "0.1"): Use("CUDA_VISIBLE_DEVICES", 1.0)}


def test_contradicting_sources_are_counted_and_the_prolog_wins():
    prolog = {"1": frozenset({"1"})}
    uses, conflicts = map_jobs([job("1", slurm_gpus(0))], prolog=prolog)
    assert uses == {("1", "1"): Use("prolog", 1.0)}
    assert conflicts == [("sources", "1")]


def test_subset_of_the_prolog_gpus_is_no_conflict():
    prolog = {"1": frozenset({"0", "1"})}
    _, conflicts = map_jobs([job("1", slurm_gpus(0))], prolog=prolog)
    assert not conflicts


def test_unknown_gpu_is_counted():
    uses, conflicts = map_jobs([job("1", slurm_gpus(7))])
    assert uses == {}
    assert conflicts == [("unknown_gpu", "1")]


def test_job_with_only_unknown_gpus_holds_those_it_uses():
    uses, conflicts = map_jobs(
        [job("1", slurm_gpus(7), (10,))], [reading(plain_gpu(0), 0.5, (GpuProcess(10, 1.0),))]
    )
    assert uses == {("1", "0"): Use("process", 1.0, 1, 1.0, 0.5)}
    assert conflicts == [("unknown_gpu", "1")]


_environs = st.fixed_dictionaries(
    {},
    optional={
        "SLURM_JOB_GPUS": st.sampled_from(["0", "1", "0,1", "9", ""]),
        "SLURM_SHARDS_ON_NODE": st.sampled_from(["0", "1", "3", "x"]),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": st.sampled_from(["10", "100", "1e9", "-1"]),
        "CUDA_VISIBLE_DEVICES": st.sampled_from(["GPU-0", "MIG-1", "0", "GPU-1,MIG-2"]),
    },
)


@given(st.lists(st.tuples(_environs, st.sets(st.integers(1, 6)))), st.booleans())
def test_shares_of_a_gpu_never_exceed_one(jobs, mig):
    gpus = [SLICED if mig else plain_gpu(0), plain_gpu(1)]
    processes = tuple(GpuProcess(pid, 1.0, pid % 3, 0) for pid in range(1, 7))
    holders = [job(str(n), variables, tuple(pids)) for n, (variables, pids) in enumerate(jobs)]
    context = AllocationContext(GpuTable(gpus), {}, None, "gpu01")
    found = build_map(holders, context, {g.uuid: reading(g, 0.5, processes) for g in gpus})
    for gpu in gpus:
        holdings = [each for each in found.holdings if each.unit.gpu == gpu]
        assert sum((each.share or 0) * each.unit.fraction for each in holdings) <= 1 + 1e-9


def map_confirmed(jobs, readings=(), before=None, prolog=None):
    """The map, and by job the share and whether a source confirms it."""
    context = AllocationContext(GpuTable((plain_gpu(0), plain_gpu(1))), prolog or {}, None, "gpu01")
    by_uuid = {each.gpu.uuid: each for each in readings}
    found = build_map(jobs, context, by_uuid, previous=before or GpuMap())
    return found, {each.job.jobid: (each.share, each.confirmed) for each in found.holdings}


ON_GPU_0 = [reading(plain_gpu(0), 0.9, (GpuProcess(10, 5e9),))]


def test_environment_alone_does_not_confirm():
    assert map_confirmed([job("1", slurm_gpus(0))])[1] == {"1": (1.0, False)}


def test_prolog_confirms_and_denies_unconfirmed_jobs_a_share():
    jobs = [
        job("1", slurm_gpus(0)),
        job("2", slurm_gpus(0)),
        job("3", slurm_gpus(0, SLURM_SHARDS_ON_NODE="9")),
    ]
    found, holds = map_confirmed(jobs, prolog={"1": frozenset({"0"})})
    assert holds == {"1": (1.0, True), "2": (None, False), "3": (None, False)}
    kinds = {(kind, job.jobid) for kind, job, _ in found.conflicts}
    assert {("unconfirmed", "2"), ("unconfirmed", "3")} <= kinds


def test_process_on_the_gpu_confirms_its_job_over_a_claim():
    jobs = [job("1", slurm_gpus(0), (10,)), job("2", slurm_gpus(0), (20,))]
    found, holds = map_confirmed(jobs, ON_GPU_0)
    assert holds == {"1": (1.0, True), "2": (None, False)}
    idle, holds = map_confirmed(jobs, [reading(plain_gpu(0), 0.0)], before=found)
    assert holds == {"1": (1.0, True), "2": (None, False)}
    _, holds = map_confirmed(jobs[1:], [reading(plain_gpu(0), 0.0)], before=idle)
    assert holds == {"2": (1.0, False)}


def test_idle_holder_of_a_shared_gpu_keeps_its_share():
    shards = {"SLURM_SHARDS_ON_NODE": "1"}
    jobs = [job("1", slurm_gpus(0, **shards), (10,)), job("2", slurm_gpus(0, **shards), (20,))]
    assert map_confirmed(jobs, ON_GPU_0)[1] == {"1": (0.5, True), "2": (0.5, False)}
