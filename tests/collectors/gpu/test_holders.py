"""The map between jobs and GPUs: who holds, who uses, in which parts, and what contradicts."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu.allocation import AllocationContext, Site
from collectors.gpu.devices import Gpu, GpuTable, Instance
from collectors.gpu.holders import GpuMap, build_map
from collectors.gpu.metrics import UTILIZATION
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobHolder, JobName
from collectors.metric import labels


def plain(index):
    return Gpu("nvidia", index, f"GPU-{index}", index, f"00000000:{index}B:00.0", "H100")


INSTANCES = (Instance("MIG-1", 1, 0, "3g.40gb", 3), Instance("MIG-2", 2, 0, "4g.40gb", 4))
SLICED = Gpu("nvidia", 0, "GPU-0", 0, "00000000:0B:00.0", "H100", True, 7, INSTANCES)


def job(jobid, environ=None, pids=(), manager="slurm"):
    name = JobName(manager, jobid, "alice", labels(manager=manager, jobid=jobid, user="alice"))
    environs = () if environ is None else ({"SLURM_JOB_NUM_NODES": "1"} | environ,)
    return JobHolder(name, 1000, pids, environs, ())


def held(*gpus, **more):
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


def spelled(unit):
    return f"{unit.gpu.index}.{unit.gpu_instance}".rstrip(".")


def mapped(jobs, readings=(), gpus=(), shards=0, prolog=None):
    seen = AllocationContext(
        GpuTable(gpus or (plain(0), plain(1))), Site(), prolog or {}, None, "gpu01"
    )
    found = build_map(jobs, seen, {each.gpu.uuid: each for each in readings}, shards)
    uses = {
        (each.job.jobid, spelled(each.unit)): Use(
            each.source, each.share, each.processes, each.memory_bytes, each.utilization
        )
        for each in found.holdings
    }
    assert len(uses) == len(found.holdings)
    return uses, sorted((each.kind, each.job.jobid) for each in found.conflicts)


def test_a_held_idle_gpu_stays():
    uses, wrong = mapped([job("1", held(0, 1))], [reading(plain(0), 0.0), reading(plain(1), 0.0)])
    idle = Use("SLURM_JOB_GPUS", 1.0, 0, 0.0, 0.0)
    assert uses == {("1", "0"): idle, ("1", "1"): idle}
    assert not wrong


def test_a_gpu_that_does_not_answer_keeps_its_holder():
    uses, _ = mapped([job("1", held(0))], [])
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0)}


def test_use_of_a_gpu_that_is_held_alone_is_the_gpu_s_own():
    processes = (GpuProcess(10, 5e9, utilization=0.2), GpuProcess(11, 1e9, utilization=0.3))
    uses, _ = mapped([job("1", held(0), (10, 11))], [reading(plain(0), 0.9, processes)])
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0, 2, 6e9, 0.9)}


def test_strangers_on_a_held_gpu_are_not_the_job_s():
    uses, _ = mapped([job("1", held(0))], [reading(plain(0), 0.9, (GpuProcess(99, 5e9),))])
    assert uses == {("1", "0"): Use("SLURM_JOB_GPUS", 1.0, 0, 0.0, 0.0)}


def test_memory_that_is_partly_unknown_is_unknown():
    processes = (GpuProcess(10, 5e9), GpuProcess(11, None))
    uses, _ = mapped([job("1", held(0), (10, 11))], [reading(plain(0), 0.9, processes)])
    assert uses["1", "0"].memory is None
    assert uses["1", "0"].processes == 2


def test_two_jobs_share_by_what_their_processes_do():
    processes = (GpuProcess(10, 5e9, utilization=0.6), GpuProcess(20, 1e9, utilization=0.3))
    jobs = [job("1", None, (10,), "lsf"), job("2", None, (20,), "lsf")]
    uses, wrong = mapped(jobs, [reading(plain(0), 0.9, processes)])
    assert uses == {
        ("1", "0"): Use("process", 0.5, 1, 5e9, 0.6),
        ("2", "0"): Use("process", 0.5, 1, 1e9, 0.3),
    }
    assert not wrong


def test_a_job_that_uses_another_s_gpu_is_shown_without_a_share():
    processes = (GpuProcess(10, 5e9, utilization=0.6), GpuProcess(20, 1e9, utilization=0.3))
    jobs = [job("1", held(0), (10,)), job("2", held(1), (20,))]
    uses, wrong = mapped(jobs, [reading(plain(0), 0.9, processes)])
    assert uses["1", "0"] == Use("SLURM_JOB_GPUS", 1.0, 1, 5e9, 0.6)
    assert uses["2", "0"] == Use("process", None, 1, 1e9, 0.3)
    assert uses["2", "1"] == Use("SLURM_JOB_GPUS", 1.0)
    assert wrong == [("process", "2")]


def test_a_job_of_which_nothing_is_known_takes_no_part_of_a_gpu_given_to_another():
    jobs = [job("1", held(0)), job("2", None, (20,))]
    uses, _ = mapped(jobs, [reading(plain(0), 0.9, (GpuProcess(20, 1e9, utilization=0.9),))])
    assert uses["1", "0"].share == 1.0
    assert uses["2", "0"].share is None


@pytest.mark.parametrize(
    ("what", "shards", "first", "second", "expected"),
    [
        ("whole twice", 0, {}, {}, (0.5, 0.5)),
        ("shards of an unknown number", 0, {"S": "2"}, {"S": "6"}, (0.25, 0.75)),
        ("shards of eight", 8, {"S": "2"}, {"S": "4"}, (0.25, 0.5)),
        ("more shards than there are", 4, {"S": "2"}, {"S": "6"}, (0.25, 0.75)),
        ("MPS", 0, {"M": "25"}, {"M": "75"}, (0.25, 0.75)),
        ("MPS that does not add up to the GPU", 0, {"M": "10"}, {"M": "30"}, (0.25, 0.75)),
        ("MPS beside a whole holder", 0, {"M": "25"}, {}, (0.2, 0.8)),
        ("nonsense", 0, {"S": "many", "M": "-1"}, {"M": "nan"}, (0.5, 0.5)),
    ],
)
def test_shares(what, shards, first, second, expected):
    names = {"S": "SLURM_SHARDS_ON_NODE", "M": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
    jobs = [
        job(str(n), held(0, **{names[k]: v for k, v in said.items()}))
        for n, said in enumerate((first, second))
    ]
    uses, wrong = mapped(jobs, shards=shards)
    assert (uses["0", "0"].share, uses["1", "0"].share) == pytest.approx(expected)
    overlap = [("overlap", "0"), ("overlap", "1")]
    assert wrong == (overlap if what in ("whole twice", "nonsense") else [])


@pytest.mark.parametrize(("shards", "share"), [(0, 1.0), (8, 0.25)])
def test_one_holder_of_shards(shards, share):
    uses, _ = mapped([job("1", held(0, SLURM_SHARDS_ON_NODE="2"))], shards=shards)
    assert uses["1", "0"].share == share


def test_a_percentage_of_mps_does_not_make_a_lone_holder_cheaper():
    uses, _ = mapped([job("1", held(0, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="1"))])
    assert uses["1", "0"].share == 1.0


def test_instances_are_held_one_by_one():
    processes = (GpuProcess(10, 5e9, 1, 0), GpuProcess(20, 1e9, 2, 0))
    jobs = [
        job("1", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, (10,)),
        job("2", {"CUDA_VISIBLE_DEVICES": "MIG-2"}, (20,)),
    ]
    uses, wrong = mapped(jobs, [reading(SLICED, None, processes)], [SLICED])
    assert uses == {
        ("1", "0.1"): Use("CUDA_VISIBLE_DEVICES", 1.0, 1, 5e9, None),
        ("2", "0.2"): Use("CUDA_VISIBLE_DEVICES", 1.0, 1, 1e9, None),
    }
    assert not wrong


def test_processes_of_which_the_instance_is_not_told_are_nobody_s():
    jobs = [job("1", {"CUDA_VISIBLE_DEVICES": "MIG-1"}, (10,))]
    uses, _ = mapped(jobs, [reading(SLICED, None, (GpuProcess(10, 5e9),))], [SLICED])
    assert uses == {("1", "0.1"): Use("CUDA_VISIBLE_DEVICES", 1.0)}


def test_contradicting_sources_are_counted_and_the_better_one_wins():
    prolog = {"1": frozenset({"1"})}
    uses, wrong = mapped([job("1", held(0))], prolog=prolog)
    assert uses == {("1", "1"): Use("prolog", 1.0)}
    assert wrong == [("sources", "1")]


def test_a_step_s_part_of_the_job_contradicts_nothing():
    prolog = {"1": frozenset({"0", "1"})}
    _, wrong = mapped([job("1", held(0))], prolog=prolog)
    assert not wrong


def test_a_gpu_that_is_not_there_is_counted():
    uses, wrong = mapped([job("1", held(7))])
    assert uses == {}
    assert wrong == [("unknown_gpu", "1")]


def test_a_job_whose_only_source_names_nothing_holds_what_it_uses():
    uses, wrong = mapped(
        [job("1", held(7), (10,))], [reading(plain(0), 0.5, (GpuProcess(10, 1.0),))]
    )
    assert uses == {("1", "0"): Use("process", 1.0, 1, 1.0, 0.5)}
    assert wrong == [("unknown_gpu", "1")]


_environs = st.fixed_dictionaries(
    {},
    optional={
        "SLURM_JOB_GPUS": st.sampled_from(["0", "1", "0,1", "9", ""]),
        "SLURM_SHARDS_ON_NODE": st.sampled_from(["0", "1", "3", "x"]),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": st.sampled_from(["10", "100", "1e9", "-1"]),
        "CUDA_VISIBLE_DEVICES": st.sampled_from(["GPU-0", "MIG-1", "0", "GPU-1,MIG-2"]),
    },
)


@given(st.lists(st.tuples(_environs, st.sets(st.integers(1, 6)))), st.integers(0, 8), st.booleans())
def test_the_parts_of_a_gpu_never_exceed_it(jobs, shards, mig):
    gpus = [SLICED if mig else plain(0), plain(1)]
    processes = tuple(GpuProcess(pid, 1.0, pid % 3, 0, 0.5) for pid in range(1, 7))
    holders = [job(str(n), said, tuple(pids)) for n, (said, pids) in enumerate(jobs)]
    seen = AllocationContext(GpuTable(gpus), Site(), {}, None, "gpu01")
    found = build_map(holders, seen, {g.uuid: reading(g, 0.5, processes) for g in gpus}, shards)
    for gpu in gpus:
        on_it = [each for each in found.holdings if each.unit.gpu == gpu]
        assert sum((each.share or 0) * each.unit.fraction for each in on_it) <= 1 + 1e-9


def confirmed(jobs, readings=(), before=None, prolog=None):
    """Who holds what (share), and whether something confirms it."""
    seen = AllocationContext(GpuTable((plain(0), plain(1))), Site(), prolog or {}, None, "gpu01")
    by_uuid = {each.gpu.uuid: each for each in readings}
    found = build_map(jobs, seen, by_uuid, previous=before or GpuMap())
    return found, {each.job.jobid: (each.share, each.confirmed) for each in found.holdings}


ON_GPU_0 = [reading(plain(0), 0.9, (GpuProcess(10, 5e9, utilization=0.6),))]


def test_an_environment_alone_confirms_nothing():
    assert confirmed([job("1", held(0))])[1] == {"1": (1.0, False)}


def test_the_prolog_confirms_and_leaves_nothing_to_whoever_names_the_gpu():
    jobs = [job("1", held(0)), job("2", held(0)), job("3", held(0, SLURM_SHARDS_ON_NODE="9"))]
    found, holds = confirmed(jobs, prolog={"1": frozenset({"0"})})
    assert holds == {"1": (1.0, True), "2": (None, False), "3": (None, False)}
    kinds = {(each.kind, each.job.jobid) for each in found.conflicts}
    assert {("unconfirmed", "2"), ("unconfirmed", "3")} <= kinds


def test_a_process_on_the_gpu_confirms_and_beats_a_claim():
    jobs = [job("1", held(0), (10,)), job("2", held(0), (20,))]
    found, holds = confirmed(jobs, ON_GPU_0)
    assert holds == {"1": (1.0, True), "2": (None, False)}
    idle, holds = confirmed(jobs, [reading(plain(0), 0.0)], before=found)
    assert holds == {"1": (1.0, True), "2": (None, False)}
    _, holds = confirmed(jobs[1:], [reading(plain(0), 0.0)], before=idle)
    assert holds == {"2": (1.0, False)}


def test_of_a_shared_gpu_an_idle_holder_keeps_its_part():
    shards = {"SLURM_SHARDS_ON_NODE": "1"}
    jobs = [job("1", held(0, **shards), (10,)), job("2", held(0, **shards), (20,))]
    assert confirmed(jobs, ON_GPU_0)[1] == {"1": (0.5, True), "2": (0.5, False)}
