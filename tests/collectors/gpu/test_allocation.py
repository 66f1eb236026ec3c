# ruff: noqa: E501 - the table reads best with a case on few lines
"""Which GPUs a job was given: by variable, scheduler, confinement, and MIG, MPS or shards."""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu.allocation import AllocationContext, allocations, read_context
from collectors.gpu.devices import Gpu, GpuTable, Instance
from collectors.gpu.job_files import PrologFiles
from collectors.host import Host
from collectors.jobs.view import GPU_VARIABLES, JobHolder, JobName
from collectors.metric import labels

MIG_0_1, MIG_0_2 = "MIG-00000001-0000-5000-8000-000000000000", "MIG-00000002-0000-5000-8000-0"


def uuid(n):
    return f"GPU-aaaaaaa{n}-0000-4000-8000-00000000000{n}"


def gpu(index, minor=None, **more):
    return Gpu(
        "nvidia",
        index,
        uuid(index),
        index if minor is None else minor,
        f"00000000:{index}B:00.0",
        "H100",
        **more,
    )


def amd_gpu(index):
    return Gpu(
        "amd", index, f"GPU-{index}d{'e' * 14}", 128 + index, f"00000000:C{index}:00.0", "MI300"
    )


PLAIN = GpuTable([gpu(0), gpu(1), gpu(2), gpu(3)])
CROSSED = GpuTable([gpu(0, 2), gpu(1, 3), gpu(2, 0), gpu(3, 1)])  # minors in another order
PAIR = GpuTable([gpu(0), gpu(1)])
UNSURE_PAIR = GpuTable([gpu(0), gpu(1)], complete=False)  # a third one has not answered yet
SLICED = GpuTable(
    [
        gpu(
            0,
            partitioned=True,
            slices=7,
            instances=(
                Instance(MIG_0_1, 1, 0, "3g.40gb", 3),
                Instance(MIG_0_2, 2, 0, "3g.40gb", 3),
            ),
        ),
        gpu(1),
    ],
    {21: (0, 1, None), 22: (0, 1, 0), 30: (0, 2, None), 31: (0, 2, 0)},
)
RADEON = GpuTable([amd_gpu(0), amd_gpu(1)])
MIXED = GpuTable([gpu(0), amd_gpu(0)])

BATCH = {"SLURM_JOB_NUM_NODES": "1"}
STEP = BATCH | {"SLURM_STEPID": "0"}
FAR = {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEPID": "0"}
PBS_V1 = "b *:* rwm\nc 1:* rwm\nc 195:255 rwm\n"
EVERYTHING = "a *:* rwm\n"


class Case(NamedTuple):
    """A job on a node, and what must come of it: units as `index` or `index.instance`."""

    what: str
    manager: str
    table: GpuTable
    environs: tuple[dict[str, str], ...]
    expected: tuple[str, ...]
    source: str = ""
    unknown: tuple[str, ...] = ()
    numbers: str = "index"
    devices: str = ""


CASES = (
    # Slurm
    Case("batch", "slurm", PLAIN, ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"},),
         ("2", "3"), "SLURM_JOB_GPUS"),
    Case("step has one of the job's two", "slurm", PLAIN,
         (BATCH | {"SLURM_JOB_GPUS": "2,3"}, STEP | {"SLURM_JOB_GPUS": "2,3", "SLURM_STEP_GPUS": "2"}),
         ("2", "3"), "SLURM_JOB_GPUS"),
    Case("srun without a batch script", "slurm", PLAIN,
         (STEP | {"SLURM_STEP_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"},), ("2",), "SLURM_STEP_GPUS"),
    Case("several steps side by side", "slurm", PLAIN,
         (STEP | {"SLURM_STEP_GPUS": "0"}, STEP | {"SLURM_STEPID": "1", "SLURM_STEP_GPUS": "3"}),
         ("0", "3"), "SLURM_STEP_GPUS"),
    Case("second node inherits the first one's list", "slurm", PLAIN,
         (FAR | {"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "3"},), ("3",), "SLURM_STEP_GPUS"),
    Case("second node, step without GPUs", "slurm", PLAIN, (FAR | {"SLURM_JOB_GPUS": "0"},), ()),
    Case("first node of two: the batch script", "slurm", PLAIN,
         ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "1"},), ("1",), "SLURM_JOB_GPUS"),
    Case("confined: ordinals mean nothing", "slurm", PLAIN, ({"CUDA_VISIBLE_DEVICES": "0"},), ()),
    Case("Slurm's devices.list always allows all", "slurm", PLAIN,
         ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},), (), devices=EVERYTHING),
    Case("gres by file name: minors", "slurm", CROSSED, (BATCH | {"SLURM_JOB_GPUS": "0"},),
         ("2",), "SLURM_JOB_GPUS", numbers="minor"),
    Case("gres by NVML: indexes", "slurm", CROSSED, (BATCH | {"SLURM_JOB_GPUS": "0"},),
         ("0",), "SLURM_JOB_GPUS"),
    Case("a GPU that is not there", "slurm", PAIR, (BATCH | {"SLURM_JOB_GPUS": "1,7"},),
         ("1",), "SLURM_JOB_GPUS", ("7",)),
    Case("nonsense", "slurm", PAIR, (BATCH | {"SLURM_JOB_GPUS": "gpu:a100:2(IDX:0-1)"},),
         (), "SLURM_JOB_GPUS", ("gpu:a100:2(IDX:0-1)",)),
    Case("no GPU", "slurm", PLAIN, ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"},), ()),
    Case("shards", "slurm", PLAIN, (BATCH | {"SLURM_JOB_GPUS": "0", "SLURM_SHARDS_ON_NODE": "2"},),
         ("0",), "SLURM_JOB_GPUS"),
    Case("MPS", "slurm", PLAIN,
         (BATCH | {"SLURM_JOB_GPUS": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},),
         ("1",), "SLURM_JOB_GPUS"),
    Case("MIG by UUID; positions count instances", "slurm", SLICED,
         (BATCH | {"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": MIG_0_2},),
         ("0.2",), "CUDA_VISIBLE_DEVICES"),
    Case("MIG by the name old drivers give", "slurm", SLICED,
         ({"CUDA_VISIBLE_DEVICES": f"MIG-{uuid(0)}/1/0"},), ("0.1",), "CUDA_VISIBLE_DEVICES"),
    Case("MIG, several tasks with one instance each", "slurm", SLICED,
         ({"CUDA_VISIBLE_DEVICES": MIG_0_1}, {"CUDA_VISIBLE_DEVICES": MIG_0_2}),
         ("0.1", "0.2"), "CUDA_VISIBLE_DEVICES"),
    Case("MIG and only positions", "slurm", SLICED, (BATCH | {"SLURM_JOB_GPUS": "1"},), ()),
    Case("MIG instance that has gone", "slurm", SLICED,
         ({"CUDA_VISIBLE_DEVICES": "MIG-77777777-0000-5000-8000-000000000000"},),
         (), "CUDA_VISIBLE_DEVICES", ("MIG-77777777-0000-5000-8000-000000000000",)),
    Case("AMD under Slurm", "slurm", RADEON,
         (BATCH | {"SLURM_JOB_GPUS": "1", "ROCR_VISIBLE_DEVICES": "0"},), ("1",), "SLURM_JOB_GPUS"),
    Case("two vendors on one node", "slurm", MIXED, (BATCH | {"SLURM_JOB_GPUS": "0"},), ()),
    # OpenPBS and Torque
    Case("UUIDs", "pbs", PLAIN, ({"CUDA_VISIBLE_DEVICES": uuid(1)},), ("1",), "CUDA_VISIBLE_DEVICES"),
    Case("MIG UUIDs", "pbs", SLICED, ({"CUDA_VISIBLE_DEVICES": f"{MIG_0_1},{uuid(1)}"},),
         ("0.1", "1"), "CUDA_VISIBLE_DEVICES"),
    Case("no GPU: empty", "pbs", PLAIN, ({"CUDA_VISIBLE_DEVICES": ""},), ()),
    Case("cgroup v1 lists the devices", "pbs", CROSSED, ({},), ("2",), "devices",
         devices=PBS_V1 + "c 195:0 rwm\n"),
    Case("kernel before environment", "pbs", PLAIN, ({"CUDA_VISIBLE_DEVICES": uuid(3)},),
         ("1",), "devices", devices=PBS_V1 + "c 195:1 rw\n"),
    Case("cgroup v1 lists an instance's capabilities", "pbs", SLICED, ({},), ("0.1",), "devices",
         devices=PBS_V1 + "c 195:0 rwm\nc 508:21 rwm\nc 508:22 rwm\n"),
    Case("cgroup v1 without GPUs", "pbs", PLAIN, ({},), (), devices=PBS_V1),
    Case("old hook: numbers, confinement not known", "pbs", PLAIN,
         ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},), ()),
    Case("old hook: numbers, nothing confined", "pbs", PLAIN,
         ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},),
         ("1",), "CUDA_VISIBLE_DEVICES", devices=EVERYTHING),
    Case("numbers, nothing confined, CUDA's own order", "pbs", PLAIN,
         ({"CUDA_VISIBLE_DEVICES": "1"},), (), devices=EVERYTHING),
    # LSF
    Case("MPS keeps the real minors", "lsf", CROSSED,
         ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES_ORIG": "0,1"},),
         ("2", "3"), "CUDA_VISIBLE_DEVICES_ORIG"),
    Case("task's own variable", "lsf", SLICED,
         ({"CUDA_VISIBLE_DEVICES0": MIG_0_1, "CUDA_VISIBLE_DEVICES1": MIG_0_2},),
         ("0.1", "0.2"), "CUDA_VISIBLE_DEVICES"),
    Case("numbers under the device cgroup", "lsf", PLAIN, ({"CUDA_VISIBLE_DEVICES": "0,1"},), ()),
    # Anything
    Case("all GPUs of the node", "flux", PAIR, ({"CUDA_VISIBLE_DEVICES": "1,0"},),
         ("0", "1"), "CUDA_VISIBLE_DEVICES"),
    Case("all, if one has not answered", "flux", UNSURE_PAIR, ({"CUDA_VISIBLE_DEVICES": "0,1"},), ()),
    Case("as much of a UUID as is unique", "local", PLAIN, ({"CUDA_VISIBLE_DEVICES": "GPU-aaaaaaa2"},),
         ("2",), "CUDA_VISIBLE_DEVICES"),
    Case("too little of a UUID", "local", PLAIN, ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"},),
         (), "CUDA_VISIBLE_DEVICES", ("GPU-aaaa",)),
    Case("none", "local", PLAIN, ({"CUDA_VISIBLE_DEVICES": "-1"},), ()),
    Case("no variables", "local", PLAIN, ({},), ()),
    Case("no process seen", "local", PLAIN, (), ()),
    Case("AMD by unique id", "local", RADEON, ({"ROCR_VISIBLE_DEVICES": amd_gpu(1).uuid},),
         ("1",), "ROCR_VISIBLE_DEVICES"),
    Case("AMD by number", "local", RADEON, ({"ROCR_VISIBLE_DEVICES": "1"},), ()),
    Case("all AMD GPUs", "local", RADEON, ({"ROCR_VISIBLE_DEVICES": "0,1"},),
         ("0", "1"), "ROCR_VISIBLE_DEVICES"),
)  # fmt: skip


def job(manager="slurm", environs=(), jobid="1", directories=(), pids=(), user="alice"):
    name = JobName(manager, jobid, user, labels(manager=manager, jobid=jobid, user=user))
    return JobHolder(name, 1000, pids, environs, directories)


def unit_names(found):
    return tuple(
        sorted(f"{u.gpu.index}{'.' * bool(u.gpu_instance)}{u.gpu_instance}" for u in found)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.manager}: {case.what}")
def test_allocation(case, tmp_path):
    assert all(GPU_VARIABLES.fullmatch(name) for environ in case.environs for name in environ)
    if case.devices:
        (tmp_path / "devices.list").write_text(case.devices)
    holder = job(case.manager, case.environs, directories=(str(tmp_path),))
    context = AllocationContext(case.table, {}, 508, "gpu01", case.numbers)
    candidates = allocations(holder, context)
    best = next((each for each in candidates if each.units), candidates[0] if candidates else None)
    if best is None:
        assert (case.expected, case.source) == ((), "")
        return
    assert (unit_names(best.units), best.source, best.unknown) == (
        case.expected,
        case.source,
        case.unknown,
    )


@pytest.fixture
def prolog(tmp_path):
    directory = tmp_path / "jobs"
    directory.mkdir()
    for name, text in {
        "0": "1\n",
        "1": "1\n2\n",
        "0.2": "3 20001\n",
        MIG_0_1: "4\n",
        "5": "1\n",
        "notes": "1\n",
        ".1.new": "1\n",
    }.items():
        (directory / name).write_text(text)
    (directory / "3").mkdir()
    return str(directory)


@pytest.mark.parametrize(
    ("jobid", "table", "expected", "unknown"),
    [
        ("1", PAIR, ("0", "1"), ("5",)),
        ("2", PAIR, ("1",), ()),
        ("3", SLICED, ("0.2",), ()),
        ("4", SLICED, ("0.1",), ()),
        ("1", SLICED, ("0.1", "0.2", "1"), ("5",)),
    ],
)
def test_prolog_files_in_the_format_of_dcgm_exporter(prolog, jobid, table, expected, unknown):
    context = read_context(Host(), table, PrologFiles(prolog).read())
    (found,) = allocations(job(jobid=jobid), context)
    assert (found.source, unit_names(found.units), found.unknown) == ("prolog", expected, unknown)


def test_missing_prolog_directory_is_ignored(tmp_path, caplog):
    assert PrologFiles(str(tmp_path / "missing")).read() == {}
    assert PrologFiles("").read() == {}
    assert caplog.messages == []


def test_unreadable_prolog_file_is_logged_once(prolog, caplog):
    files = PrologFiles(prolog)
    assert files.read()["2"] == {"1"}  # whatever is wrong with another file
    files.read()
    (message,) = caplog.messages
    assert message.startswith(f"{prolog}/3: ")
    (Path(prolog) / "3").rmdir()
    files.read()
    assert len(caplog.messages) == 1
    not_a_directory = PrologFiles(f"{prolog}/0")
    assert (not_a_directory.read(), not_a_directory.read()) == ({}, {})
    assert caplog.messages[1:] == [
        f"{prolog}/0: Not a directory; other sources are used to map GPUs to jobs"
    ]


def test_pbs_and_torque_files(tmp_path):
    (tmp_path / "aux").mkdir()
    (tmp_path / "aux/1.pbs01.env").write_text(
        f"PBS_JOBID=1.pbs01\nCUDA_VISIBLE_DEVICES={uuid(2)}\n"
    )
    (tmp_path / "aux/2.pbs01gpu").write_text("gpu01-gpu3\ngpu02-gpu0\n")
    context = AllocationContext(PLAIN, {}, None, "gpu01", pbs_homes=(str(tmp_path),))
    environs = ({"CUDA_VISIBLE_DEVICES": uuid(0)},)  # what a user may write there himself
    first, second = allocations(job("pbs", environs, "1.pbs01"), context)
    assert (first.source, unit_names(first.units)) == ("pbs", ("2",))
    assert (second.source, unit_names(second.units)) == ("CUDA_VISIBLE_DEVICES", ("0",))
    (torque,) = allocations(job("torque", (), "2.pbs01"), context)
    assert unit_names(torque.units) == ("3",)


def test_recorded_pbs_gpu_jobs(tree):
    host = tree("openpbs-23.06-v1-07-two-gpu-jobs")
    first, second = (
        "GPU-11111111-aaaa-4bbb-8ccc-000000000000",
        "GPU-22222222-aaaa-4bbb-8ccc-000000000001",
    )
    table = GpuTable(
        [Gpu("nvidia", n, u, n, f"00000000:0{n}:00.0", "") for n, u in enumerate((first, second))]
    )
    context = read_context(host, table, {})
    for jobid, expected in (("11.pbs01", "0"), ("12.pbs01", "1")):
        directory = f"{host.cgroupfs}/devices/pbs_jobs.service/jobid/{jobid}"
        (found,) = allocations(job("pbs", (), jobid, (directory,)), context)
        assert (found.source, unit_names(found.units)) == ("devices", (expected,))


@given(
    st.dictionaries(
        st.sampled_from(
            ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
             "CUDA_VISIBLE_DEVICES_ORIG", "SLURM_STEPID", "CUDA_VISIBLE_DEVICES0"]
        ),
        st.text() | st.from_regex(r"[0-9,\-]*", fullmatch=True),
    )
)  # fmt: skip
def test_arbitrary_environ_gives_only_gpus_of_the_node(environ):
    for table in (PLAIN, SLICED, RADEON, MIXED):
        context = AllocationContext(table, {}, 508, "gpu01")
        for each in allocations(job(environs=(environ,)), context):
            assert each.units <= set(table.units)


def test_the_kernels_device_program_precedes_all_and_silences_the_environment():
    forged = {**BATCH, "SLURM_JOB_GPUS": "0,1,2,3", "CUDA_VISIBLE_DEVICES": uuid(3)}
    holder = JobHolder(JobName("slurm", "1", "u", labels()), 1000, (), (forged,), ())
    context = AllocationContext(PLAIN, {"1": frozenset({"1"})}, None, "node")
    assert allocations(holder, context)[0].source == "prolog"
    enforced = context._replace(allotted={holder.name: frozenset({(195, 2)})})
    found = allocations(holder, enforced)
    assert [each.source for each in found] == ["devices", "prolog"]
    assert [unit.gpu.index for unit in found[0].units] == [2]
    assert found[0].trusted
    nothing = context._replace(allotted={holder.name: frozenset()}, prolog_files={})
    assert allocations(holder, nothing) == []


def test_the_device_program_tells_instances_by_their_capabilities():
    holder = JobHolder(JobName("slurm", "1", "u", labels()), 1000, (), (), ())
    allotted = {holder.name: frozenset({(195, 0), (240, 21), (240, 22)})}
    context = AllocationContext(SLICED, {}, 240, "node", allotted=allotted)
    (found,) = allocations(holder, context)
    assert [unit.instance.uuid for unit in found.units] == [MIG_0_1]
