"""Parsed JSON and text of Slurm 22.05 and 24.11 match the recorded tables of its commands."""

import contextlib
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, parse_json_object
from batchjob.schedulers.cluster import Rpc
from batchjob.schedulers.slurm import cluster as slurm
from batchjob.schedulers.slurm import cluster_json as slurm_json
from batchjob.schedulers.slurm import cluster_text as slurm_text
from batchjob.schedulers.slurm.formats import gres_gpus
from batchjob.schedulers.states import JobState
from tests.helpers.waiting import scaled


def sinfo_rows(text: bytes) -> dict[str, list[str]]:
    """Cells by node of `sinfo -N -O NodeList,StateLong,StateCompact,CPUsState,Memory,...`."""
    rows = (line.split("|") for line in text.decode().splitlines())
    return {row[0]: row for row in rows}


def test_nodes_of_22_05_match_sinfo(recorded_output):
    nodes = slurm_text.nodes(recorded_output("slurm-22.05/scontrol-node-d-o.txt"))
    expected = sinfo_rows(recorded_output("slurm-22.05/sinfo-O.txt"))
    assert {node.name for node in nodes} == set(expected)
    for node in nodes:
        _, state, _, cpus, memory, allocated, *_ = expected[node.name]
        assert node.state == state
        assert f"{node.cpus_allocated}/{node.cpus - node.cpus_allocated}/0/{node.cpus}" == cpus
        assert node.memory_bytes == int(memory) << 20
        assert node.memory_allocated_bytes == int(allocated) << 20
    assert [(node.gpus, node.gpus_allocated) for node in nodes] == [(4, 1), (4, 0), (2, 1), (0, 0)]
    assert nodes[0].gpu_models == (("a100", 4, 1),)
    assert nodes[0].partitions == ("cpu", "gpu")


def test_json_and_text_of_22_05_agree(recorded_output):
    from_text = slurm_text.nodes(recorded_output("slurm-22.05/scontrol-node-d-o.txt"))
    from_json = slurm_json.nodes(parse_json_object(recorded_output("slurm-22.05/sinfo.json")))
    assert [node._replace(reason_since=None) for node in from_json] == from_text


def test_json_of_24_11_matches_sinfo_and_scontrol(recorded_output):
    nodes = slurm_json.nodes(
        parse_json_object(recorded_output("slurm-24.11/scontrol_show_nodes.json"))
    )
    text = recorded_output("slurm-24.11/scontrol_show_node_d.txt").decode().replace("\n   ", " ")
    assert [node._replace(reason_since=None) for node in nodes] == slurm_text.nodes(text.encode())
    assert [(node.name, node.state, node.cpus, node.cpus_allocated) for node in nodes] == [
        ("node01", "mixed", 8, 7),
        ("node02", "mixed", 8, 1),
    ]
    assert [(node.gpus, node.gpus_allocated) for node in nodes] == [(4, 2), (0, 0)]
    assert nodes[0].memory_allocated_bytes == 1220 << 20


def test_nodes_of_26_05_match_sinfo(recorded_output):
    from_json = slurm_json.nodes(parse_json_object(recorded_output("slurm-26.05/nodes.json")))
    text = recorded_output("slurm-26.05/scontrol-node-d-o.txt")
    assert [node._replace(reason_since=None) for node in from_json] == slurm_text.nodes(text)
    rows = recorded_output("slurm-26.05/sinfo-exporter.txt").decode().split()
    by_sinfo = Counter(tuple(row.split("|")[3:5]) for row in rows if row.startswith("cpu*"))
    assert by_sinfo == Counter(
        ("reserved" if "reserved" in node.flags else node.state,
         f"{node.cpus_allocated}/{node.cpus - node.cpus_allocated}/0/{node.cpus}")
        for node in from_json
    )  # fmt: skip
    models = [node.gpu_models for node in from_json]
    assert models == [(("a100", 4, 0),), (("a100", 2, 0), ("v100", 2, 0)), (), ()]
    assert [(node.gpus, node.gpus_allocated) for node in from_json][2:] == [(2, 0), (0, 0)]


def test_controller_of_26_05_in_json_and_text(recorded_output):
    from_text = slurm_text.controller(recorded_output("slurm-26.05/sdiag.txt"))
    from_json = slurm_json.controller(parse_json_object(recorded_output("slurm-26.05/sdiag.json")))
    assert from_json.numbers == from_text.numbers
    own = from_json.by_type["REQUEST_STATS_INFO"]  # sdiag itself, which was called twice
    assert own.calls == from_text.by_type["REQUEST_STATS_INFO"].calls + 1
    assert {**from_text.by_type, "REQUEST_STATS_INFO": own} == from_json.by_type
    failed = {name: from_json.numbers[name] for name in ("failed", "completed", "cancelled")}
    assert failed["failed"] == 0  # beside jobs that failed, which count as completed
    assert failed["completed"] > 0


def without_name_column(output: bytes) -> bytes:
    """The table without the column NAME: it is never requested, and one name contains `|`."""
    rows = [line.split(b"|") for line in output.splitlines()]
    width = len(rows[0])
    return b"\n".join(b"|".join([*row[:3], *row[4 + len(row) - width :]]) for row in rows)


def count_by_partition_and_state(jobs):
    counts = Counter()
    for job in jobs:
        if job.state.is_live:
            counts[job.partition, job.state] += job.tasks
    return counts


def test_jobs_of_22_05_match_squeue(recorded_output):
    from_json = slurm_json.jobs(parse_json_object(recorded_output("slurm-22.05/squeue.json")))
    from_text = slurm_text.jobs(without_name_column(recorded_output("slurm-22.05/squeue-O.txt")))
    assert count_by_partition_and_state(from_json) == count_by_partition_and_state(from_text)
    assert count_by_partition_and_state(from_json) == {
        ("cpu", "PENDING"): 4,  # two of them are 38_[3-4%2]
        ("cpu", "RUNNING"): 4,
        ("gpu", "PENDING"): 1,
        ("gpu", "RUNNING"): 2,
    }
    reasons = {(job.reason, job.tasks) for job in from_json if job.state is JobState.PENDING}
    assert reasons == {
        ("BeginTime", 1),
        ("JobArrayTaskLimit", 2),
        ("JobHeldUser", 1),
        ("Resources", 1),
    }
    (waiting_for_gpus,) = [job for job in from_json if job.reason == "Resources"]
    assert waiting_for_gpus.gpus == 2
    assert [job.gpus for job in from_text if job.jobid == waiting_for_gpus.jobid] == [2]


def test_jobs_of_24_11_match_squeue(recorded_output):
    jobs = slurm_json.jobs(parse_json_object(recorded_output("slurm-24.11/squeue.json")))
    lines = recorded_output("slurm-24.11/squeue_all.txt").decode().splitlines()[1:]
    # Names may hold the separator, so the columns are counted from the end.
    expected = Counter((line.split("|")[-11], line.split("|")[-7]) for line in lines)
    assert count_by_partition_and_state(jobs) == expected
    assert sum(expected.values()) == 9


def test_controller_of_22_05(recorded_output):
    controller = slurm_text.controller(recorded_output("slurm-22.05/sdiag.txt"))
    numbers = controller.numbers
    assert (numbers["threads"], numbers["submitted"], numbers["backfilled"]) == (3, 46, 20)
    assert (numbers["main_cycles"], numbers["main_last"]) == (229, 197e-6)
    assert (numbers["backfill_cycles"], numbers["backfill_last"]) == (106, 153e-6)
    assert controller.by_type["REQUEST_JOB_INFO"] == Rpc(44, 24619e-6)
    assert controller.by_user["root"].calls > 0


def test_controller_of_24_11_in_json_and_text(recorded_output):
    from_text = slurm_text.controller(recorded_output("slurm-24.11/sdiag.txt"))
    from_json = slurm_json.controller(parse_json_object(recorded_output("slurm-24.11/sdiag.json")))
    assert from_text.numbers.keys() == from_json.numbers.keys()
    # The text was taken 14 s later: three cycles went by.
    changed_numbers = {
        name for name in from_text.numbers if from_text.numbers[name] != from_json.numbers[name]
    }
    assert changed_numbers == {"main_cycles", "main_last", "main_mean"}
    assert from_text.by_type.keys() >= from_json.by_type.keys() - {"REQUEST_STATS_INFO"}
    assert from_json.by_user["bob"] == from_text.by_user["bob"] == Rpc(24, 1.583199)


def test_fairshare_matches_sshare(recorded_output):
    shares = {
        share.account: share
        for share in slurm_text.fairshare(recorded_output("slurm-24.11/sshare.txt"))
    }
    assert set(shares) == {"ml", "science", "chemistry", "physics"}
    ml = shares["ml"]
    assert (ml.shares, ml.usage, ml.level, ml.factor) == (0.833333, 0.379083, 2.198284, None)


def test_drained_node_in_text():
    line = (
        b"NodeName=n1 Arch=x86_64 CPUAlloc=0 CPUEfctv=8 CPUTot=8 Gres=(null) RealMemory=1000 "
        b"AllocMem=0 State=IDLE*+DRAIN ThreadsPerCore=1 Partitions=a,b "
        b"Reason=bad DIMM /dev/mem0 State=UP [root@2026-11-20T11:00:00] Comment=x\n"
    )
    (node,) = slurm_text.nodes(line)
    assert (node.state, node.flags) == ("idle", {"drain", "not_responding"})
    assert not node.is_usable
    assert node.reason == "bad DIMM State=UP"
    assert node.reason_since == 1795172400


def test_repeated_names_in_text_have_no_value_unless_slurm_writes_them_first():
    line = b"NodeName=n1 Gres=gpu:2 State=IDLE CPULoad=1 Reason=x CPULoad=2 Gres=gpu:9 State=DOWN\n"
    (node,) = slurm_text.nodes(line)
    assert (node.state, node.gpus) == ("idle", 2)


def test_times_in_text_are_utc_also_in_an_hour_that_does_not_exist_here(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        text = b"NodeName=n State=DOWN Reason=fan [root@2026-03-29T02:30:00]\n"
        (node,) = slurm_text.nodes(text)
        assert node.reason_since == 1774751400
    finally:
        monkeypatch.undo()
        time.tzset()


def test_licenses_in_text():
    text = b"LicenseName=matlab Total=10 Used=3 Free=7 Reserved=0 Remote=no\n"
    assert slurm_text.licenses(text) == [("matlab", 10, 3)]


def test_licenses_and_shares_in_json():
    answer = {"licenses": [{"LicenseName": "m", "Total": 9, "Used": 2, "Free": 7, "Reserved": 0}]}
    assert slurm_json.licenses(answer) == [("m", 9, 2)]
    ratio = {"set": True, "infinite": False, "number": 0.5}
    account = {
        "name": "ml",
        "parent": "root",
        "type": [],
        "shares_normalized": ratio,
        "effective_usage": ratio,
        "fairshare": {"factor": ratio, "level": ratio},
    }
    answer = {"shares": {"shares": [account, {**account, "name": "bob", "type": ["USER"]}]}}
    assert slurm_json.fairshare(answer) == [("ml", 0.5, 0.5, 0.5, None)]


@pytest.mark.parametrize(
    ("text", "tasks", "is_cut"),
    [
        ("", 1, False), ("3-4%2", 2, False), ("1-5,7,10-20:2", 12, False), ("1,...", 1, True),
        ("1,3,5,...%9", 3, True), ("0-9,20-3...", 10, True), ("5-1", 1, False), ("x", 1, False),
    ],
)  # fmt: skip
def test_number_of_array_tasks(text, tasks, is_cut):
    assert slurm_json.array_tasks(text) == (tasks, is_cut)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:2(IDX:0-1),gpu:v100:0(IDX:N/A),shard:a100:1(0/2,0/2)", {"a100": 2, "v100": 0}),
        ("gpu:(null):3(IDX:0,2-3)", {"": 3}),  # Slurm 20.11 to 22.05, GPUs without a type
        ("gpu:(null):4(S:0-1)", {"": 4}),
        ("gpu:4,gpu:3090:2", {"": 4, "3090": 2}),
        ("gpu:1g.5gb:3(S:0)", {"1g.5gb": 3}),
        ("gres/gpu:a100:2", {"a100": 2}),
        ("cpu=1,gres/gpu=2", {"": 2}),
        ("gres:gpu:1", {"": 1}),
        ("gres:gpu", {"": 1}),
        ("gpumem:5,shard:8,mps:gpu:3", {}),
        ("N/A", {}),
        ("", {}),
    ],
)
def test_gpus_of_gres_strings(text, gpus):
    assert gres_gpus(text) == gpus


def pending(**row):
    return {"job_id": 1, "job_state": ["PENDING"], "tres_req_str": "cpu=4,mem=16G,node=2"} | row


@pytest.mark.parametrize(
    ("row", "gpus"),
    [
        ({"tres_per_job": "gres/gpu:4"}, 4),
        ({"tres_per_node": "gres/gpu:a100:2", "node_count": 2}, 4),
        ({"tres_per_node": "gres:gpu:1"}, None),  # on how many nodes is not known
        ({"tres_per_task": "cpu=1,gres/gpu=1", "tasks": 3}, 3),
        ({"tres_per_socket": "gres/gpu:2"}, None),
        ({"tres_req_str": "cpu=4,gres/gpu=6", "tres_per_job": "gres/gpu:4"}, 6),
        ({"job_state": ["RUNNING"], "gres_detail": ["gpu:h100:2(IDX:0-1)", "gpu:1(IDX:3)"]}, 3),
        ({}, 0),
        ({"tres_req_str": ""}, None),
    ],
)
def test_gpus_of_a_job_that_slurm_does_not_track_as_tres(row, gpus):
    (job,) = slurm_json.jobs({"jobs": [pending(**row)]})
    assert job.gpus == gpus


def test_gpus_of_a_job_in_text():
    text = (
        b"JOBID|STATE|NODES|TASKS|TRES_ALLOC|TRES_PER_JOB|TRES_PER_NODE|TRES_PER_TASK|\n"
        b"7|PENDING|2|4|cpu=4,node=2|N/A|gres:gpu:2|N/A|\n8|RUNNING|1|1|cpu=1|N/A|N/A|N/A|\n"
    )
    assert [job.gpus for job in slurm_text.jobs(text)] == [4, 0]


@pytest.mark.parametrize("tres", ["cpu", "cpu=1,gres/gpu=many", "cpu=1,,mem=2G", "=", "INVALID"])
def test_job_whose_tres_cannot_be_read_is_counted_with_the_others(tres):
    head = "JOBID|STATE|NODES|TASKS|TRES_ALLOC|TRES_PER_JOB|TRES_PER_NODE|TRES_PER_TASK|\n"
    rows = f"7|PENDING|2|4|{tres}|N/A|N/A|N/A|\n8|RUNNING|1|1|cpu=1,gres/gpu=2|N/A|N/A|N/A|\n"
    found = slurm_text.jobs((head + rows).encode())
    assert [(job.jobid, job.gpus) for job in found] == [("7", None), ("8", 2)]
    listed = [pending(tres_req_str=tres), pending(tres_req_str="cpu=1,gres/gpu=2")]
    assert [job.gpus for job in slurm_json.jobs({"jobs": listed})] == [None, 2]


@pytest.mark.parametrize(
    ("reason", "eligible", "expected"),
    [
        ("Resources", 1795172400, 1795172400),
        ("Priority", 0, None),
        ("JobHeldUser", 1795172520, None),  # requeued and held: Slurm says in two minutes
        ("Dependency", 0, None),
        ("BeginTime", 1795176000, None),
        ("JobArrayTaskLimit", 1795172400, None),
        ("job requeued in held state", 1795172520, None),
        ("user env retrieval failed requeued held", 1795172520, None),
        ("BadConstraints", 1795172400, None),
        ("Priority,JobArrayTaskLimit", 1795172400, 1795172400),
        ("JobArrayTaskLimit,Priority", 1795172400, 1795172400),
        ("JobArrayTaskLimit,BeginTime", 1795172400, None),
        ("ReqNodeNotAvail, UnavailableNodes:n1", 1795172400, 1795172400),
    ],
)
def test_only_eligible_jobs_wait(reason, eligible, expected):
    row = pending(state_reason=reason, eligible_time=eligible, submit_time=1795170000)
    (job,) = slurm_json.jobs({"jobs": [row]})
    assert job.eligible_time == expected


@pytest.mark.parametrize("word", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_job_that_its_state_says_is_held_does_not_wait(word):
    row = pending(job_state=["PENDING", word], state_reason="None", eligible_time=1795172520)
    assert [job.eligible_time for job in slurm_json.jobs({"jobs": [row]})] == [None]
    text = f"JOBID|STATE|REASON|ELIGIBLE_TIME|\n7|{word}|None|2026-11-20T12:02:00|\n"
    assert [job.eligible_time for job in slurm_text.jobs(text.encode())] == [None]


def test_cpus_of_specialised_cores_are_not_free():
    (node,) = slurm_json.nodes(
        {"nodes": [{"name": "n1", "state": ["IDLE"], "cpus": 64, "effective_cpus": 62}]}
    )
    (same,) = slurm_text.nodes(b"NodeName=n1 CPUAlloc=0 CPUEfctv=62 CPUTot=64 State=IDLE\n")
    assert node.cpus == same.cpus == 62


@given(st.text())
def test_arbitrary_text_is_parsed_or_rejected(text):
    for read in (slurm_text.nodes, slurm_text.jobs, slurm_text.controller, slurm_text.fairshare):
        with contextlib.suppress(SchedulerError):
            read(text.encode("utf-8", "replace"))
    assert slurm_json.array_tasks(text)[0] >= 1
    assert min(gres_gpus(text).values(), default=0) >= 0


@pytest.mark.parametrize("partitions", [7, "cpu", {"cpu": 1}, None])
def test_node_whose_partitions_make_no_sense_is_counted_with_the_others(partitions):
    rows = [{"name": "n1", "partitions": partitions}, {"name": "n2", "partitions": ["cpu"]}]
    nodes = slurm_json.nodes({"nodes": rows})
    assert [node.partitions for node in nodes] == [(), ("cpu",)]


def test_gpus_of_several_models():
    gres, used = "gpu:a100:2(S:0),gpu:v100:4,gpu:1,shard:8", "gpu:a100:1(IDX:0),gpu:v100:0(IDX:N/A)"
    assert sum(gres_gpus(gres).values()) == 7
    assert slurm_json.node_gpus(gres, used) == (7, 1, (("a100", 2, 1), ("v100", 4, 0)))


def test_gpus_with_unknown_allocation():
    assert slurm_json.node_gpus("gpu:a100:2", None) == (2, None, (("a100", 2, None),))
    (node,) = slurm_json.nodes({"nodes": [{"name": "n1", "state": ["IDLE"], "gres": "gpu:2"}]})
    assert (node.gpus, node.gpus_allocated) == (2, None)


def test_warning_before_the_json_is_ignored(recorded_output):
    output = (
        b"slurm_load_jobs: warning {1}\n" + recorded_output("slurm-24.11/squeue.json") + b"bye\n"
    )
    assert len(slurm_json.jobs(parse_json_object(output))) > 5


def test_text_is_read_from_commands_without_json_option(recorded_output, install_command):
    install_command("sdiag", **{"": recorded_output("slurm-22.05/sdiag.txt")})
    install_command(
        "scontrol", **{"-d show nodes": recorded_output("slurm-22.05/scontrol-node-d-o.txt")}
    )
    install_command("squeue", **{"--json": recorded_output("slurm-22.05/squeue.json")})
    install_command("sshare", **{"-P -l": recorded_output("slurm-22.05/sshare.txt")})
    readers = slurm.command_readers(CommandOptions(timeout=scaled(5)))
    assert readers.controller().numbers["threads"] == 3
    for _ in range(2):
        assert len(readers.nodes()) == 4
    assert len(readers.jobs()) > 10
    assert {share.account for share in readers.fairshare()} == {"chem", "physics", "astro"}


def test_empty_output_is_an_error(install_command):
    install_command("scontrol", **{"": b""})
    install_command("squeue", **{"": b""})
    readers = slurm.command_readers(CommandOptions(timeout=scaled(5)))
    for read in (readers.nodes, readers.jobs):
        with pytest.raises(SchedulerError):
            read()
