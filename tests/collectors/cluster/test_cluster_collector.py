"""The cluster collector: its metrics, expiry of values, and counting of waiting times."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from batchjob.runtime.settings import SettingsError
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.cluster import (
    ClusterJob,
    ClusterNode,
    ClusterOptions,
    ClusterReaders,
    GpuModel,
    reason_word,
    shorten_reason,
)
from batchjob.schedulers.pbs import cluster as pbs
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs, parse_text_jobs
from batchjob.schedulers.slurm import cluster_text as slurm_text
from batchjob.schedulers.states import JobState
from batchjob_exporter.exposition import OPENMETRICS, render
from collectors.cluster.collector import COLLECTOR, Cluster
from collectors.cluster.metrics import METRICS
from collectors.host import Host
from tests.helpers.clock import Clock


def sample_values(collector):
    text = render(collector.collect(), OPENMETRICS).decode()
    return {
        (sample.name.removeprefix("batchjob_cluster_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def cluster_collector(clock, options=None, **parts):
    host = Host(clock=clock, monotonic=clock)
    return Cluster(host, "slurm", ClusterReaders(**parts), options or ClusterOptions())


def test_drained_node_has_a_reason_and_no_idle_cpus():
    drained = ClusterNode(
        "n1", "idle", frozenset(("drain",)), ("cpu", "gpu"), 8, 2, 100, 50, 4, 1, "bad DIMM", 900
    )
    idle = ClusterNode("n2", "idle", frozenset(), ("cpu",), 8, 2)
    collector = cluster_collector(Clock(), nodes=lambda: [drained, idle])
    collector.refresh()
    values = sample_values(collector)
    assert values["nodes", "idle"] == 2  # n1 is in two partitions, but counted once
    assert values["nodes_flagged", "drain"] == 1
    assert values["partition_nodes", "cpu", "idle"] == 2
    assert values["node_unavailable_info", "n1", "bad DIMM"] == 1
    assert values["node_unavailable_since_seconds", "n1"] == 900
    assert values["node_cpus_idle", "n1"] == 0
    assert values["node_cpus_idle", "n2"] == 6
    assert values["node_gpus_allocated", "n1"] == 1
    assert ("node_gpus", "n2") not in values  # unknown, so not exported


def test_node_failure_is_counted_once():
    states = ["down", "idle", "down", "down", "idle", "error"]
    collector = cluster_collector(
        Clock(), nodes=lambda: [ClusterNode("n1", states.pop(0), frozenset(), ())]
    )
    counts = []
    while states:
        collector.refresh()
        counts.append(sample_values(collector)["node_failures_total", "n1"])
    assert counts == [0, 0, 1, 1, 1, 2]  # it was down before the first reading


def test_unavailable_and_draining_times_are_histograms():
    clock = Clock()
    idle = ClusterNode("n1", "idle", frozenset(), ("cpu",), 8, 2)
    draining = idle._replace(state="mixed", flags=frozenset(("drain",)))
    drained = draining._replace(state="idle", cpus_allocated=0)
    answers = [idle, draining, drained, idle]
    collector = cluster_collector(clock, nodes=lambda: [answers.pop(0)])
    for _ in range(4):
        collector.refresh()
        clock.now += 30
    values = sample_values(collector)
    assert values["node_draining_seconds_sum",] == 30
    assert values["node_unavailable_seconds_sum",] == 60
    assert values["node_unavailable_seconds_bucket", "60.0"] == 1
    assert values["node_unavailable_seconds_bucket", "10.0"] == 0
    assert values["node_unavailable_seconds_count",] == 1


def test_gpu_time_by_state():
    clock = Clock()
    node = ClusterNode("n1", "mixed", frozenset(), ("gpu",), gpus=4, gpus_allocated=1)
    draining = node._replace(flags=frozenset(("drain",)))
    answers = [node, draining, node, node]
    collector = cluster_collector(clock, nodes=lambda: [answers.pop(0)])
    for seconds in (30, 10, 1000, 0):  # the long gap is not counted
        collector.refresh()
        clock.now += seconds
    values = sample_values(collector)
    seconds_by_state = {
        state: values["node_gpu_seconds_total", "n1", state]
        for state in ("allocated", "idle", "unavailable")
    }
    assert seconds_by_state == {"allocated": 40, "idle": 90, "unavailable": 30}


def test_gpus_by_model():
    models = (GpuModel("a100", 2, 1), GpuModel("v100", 4, None))
    node = ClusterNode("n1", "mixed", frozenset(), ("gpu",), gpu_models=models)
    collector = cluster_collector(Clock(), nodes=lambda: [node])
    collector.refresh()
    values = sample_values(collector)
    assert values["node_model_gpus", "n1", "a100"] == 2
    assert values["node_model_gpus_allocated", "n1", "a100"] == 1
    assert ("node_model_gpus_allocated", "n1", "v100") not in values


def test_partitions_sum_their_nodes():
    nodes = [
        ClusterNode("n1", "mixed", frozenset(), ("cpu", "all"), 8, 2, gpus=4, gpus_allocated=1),
        ClusterNode("n2", "idle", frozenset(("drain",)), ("all",), 8, 0),
    ]
    collector = cluster_collector(Clock(), nodes=lambda: nodes)
    collector.refresh()
    values = sample_values(collector)
    assert (values["partition_cpus", "cpu"], values["partition_cpus", "all"]) == (8, 16)
    assert values["partition_cpus_allocated", "all"] == 2
    assert values["partition_cpus_idle", "all"] == 6
    assert values["partition_gpus_idle", "all"] == 3


def test_jobs_by_account_and_optionally_by_user():
    jobs = [
        ClusterJob("1", "cpu", JobState.RUNNING, cpus=4, account="astro", user="alice"),
        ClusterJob("2", "cpu", JobState.PENDING, tasks=3, cpus=2, account="astro", user="alice"),
        ClusterJob("3", "cpu", JobState.COMPLETED, cpus=2, account="astro", user="bob"),
    ]
    for users in (False, True):
        collector = cluster_collector(Clock(), ClusterOptions(users=users), jobs=lambda: jobs)
        collector.refresh()
        values = sample_values(collector)
        assert values["account_jobs", "astro", "PENDING"] == 3
        assert values["account_cpus", "astro"] == 4
        assert (("user_jobs", "alice", "RUNNING") in values) is users
        assert ("user_jobs", "bob", "COMPLETED") not in values


def test_pending_jobs():
    jobs = [
        ClusterJob("1", "cpu", JobState.PENDING, "Priority", 3, 4, 1, 400),
        ClusterJob("2", "cpu", JobState.PENDING, "Resources", 1, 2, None, 900, is_cut=True),
        ClusterJob("3", "cpu", JobState.COMPLETED),
    ]
    collector = cluster_collector(Clock(), jobs=lambda: jobs)
    collector.refresh()
    values = sample_values(collector)
    assert values["jobs", "cpu", "PENDING"] == 4
    assert values["jobs_pending", "cpu", "Priority"] == 3
    assert values["pending_cpus", "cpu"] == 14
    assert values["pending_gpus", "cpu"] == 3
    assert values["pending_longest_wait_seconds", "cpu"] == 600
    assert values["arrays_cut", "cpu"] == 1
    assert ("jobs", "cpu", "COMPLETED") not in values


def test_job_wait_is_counted_once():
    running = ClusterJob("1", "cpu", JobState.RUNNING, eligible_time=0, start_time=500)
    jobs = [running]
    collector = cluster_collector(Clock(), jobs=lambda: jobs)
    collector.refresh()
    # The job had started before the first reading.
    assert ("job_wait_seconds_count", "cpu") not in sample_values(collector)
    jobs.append(ClusterJob("2", "cpu", JobState.RUNNING, eligible_time=900, start_time=960))
    jobs.append(ClusterJob("3", "cpu", JobState.COMPLETED, eligible_time=0, start_time=700))
    for _ in range(2):
        collector.refresh()
    jobs[1] = jobs[1]._replace(state=JobState.COMPLETED)
    collector.refresh()
    values = sample_values(collector)
    assert values["job_wait_seconds_count", "cpu"] == 2
    assert values["job_wait_seconds_sum", "cpu"] == 760
    assert values["job_wait_seconds_bucket", "cpu", "60.0"] == 1
    assert values["job_wait_seconds_bucket", "cpu", "900.0"] == 2
    assert values["job_wait_seconds_bucket", "cpu", "+Inf"] == 2


def test_values_of_a_failing_part_age_and_expire():
    clock = Clock()
    answers = [[ClusterNode("n1", "idle", frozenset(), ())]]

    def nodes():
        if not answers:
            raise SchedulerError("scontrol lists no nodes")
        return answers.pop()

    collector = cluster_collector(clock, nodes=nodes, jobs=list)
    collector.refresh()
    clock.now += 60
    collector.refresh()
    values = sample_values(collector)
    assert values["nodes", "idle"] == 1
    assert values["age_seconds", "nodes"] == 60
    assert values["age_seconds", "jobs"] == 0
    assert values["errors_total", "nodes"] == 1
    clock.now += 51  # 3 * interval + time-out = 110 s
    collector.refresh()
    values = sample_values(collector)
    assert ("nodes", "idle") not in values
    assert ("age_seconds", "nodes") not in values
    assert values["age_seconds", "jobs"] == 0


def test_hanging_command_is_killed(install_command):
    program = install_command("scontrol")
    program.write_text("#!/bin/sh\nsleep 60\n")
    collector = COLLECTOR.build(
        Host(), ClusterOptions(scheduler="slurm", timeout=0.2, without=("jobs",)), {}
    )
    collector.refresh()
    assert sample_values(collector)["errors_total", "nodes"] == 1


def test_metrics_of_recorded_slurm_output(recorded_output, install_command):
    install_command(
        "scontrol",
        **{
            "--json -a show nodes": recorded_output("slurm-24.11/scontrol_show_nodes.json"),
            "show licenses": b"No licenses configured in Slurm.\n",
        },
    )
    install_command("squeue", **{"--json": recorded_output("slurm-24.11/squeue.json")})
    install_command("sdiag", **{"--json": recorded_output("slurm-24.11/sdiag.json")})
    install_command("sshare", **{"-P": recorded_output("slurm-24.11/sshare.txt")})
    collector = COLLECTOR.build(Host(), ClusterOptions(), {})
    collector.refresh()
    values = sample_values(collector)
    assert values["info", "slurm"] == 1
    assert {value for key, value in values.items() if key[0] == "errors_total"} == {0}
    assert values["node_cpus_allocated", "node01"] == 7
    assert values["jobs_pending", "batch", "JobHeldUser"] == 1
    assert values["controller_cycles_total", "main"] == 139
    assert values["rpc_user_seconds_total", "bob"] == 1.583199
    assert values["account_fairshare_level", "ml"] == 2.198284
    names = {metric.name for metric in METRICS}
    assert {family.metric.name for family in collector.collect()} <= names


def test_parts_can_be_disabled():
    collector = cluster_collector(
        Clock(), ClusterOptions(without=("nodes",)), nodes=list, jobs=list
    )
    assert ("errors_total", "nodes") not in sample_values(collector)


def test_missing_scheduler_is_a_settings_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="none of the commands scontrol, pbsnodes, bhosts"):
        COLLECTOR.build(Host(), ClusterOptions(), {})


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Not responding", "Not responding"),
        ("disk /dev/sda1 full at 10:15:00 [root@2026-11-20T10:15:00]", "disk full at"),
        ("ticket 12345 of bob", "ticket of bob"),
        ("x" * 100, "x" * 64),
        ("gpu 3 lost", "gpu 3 lost"),
    ],
)
def test_reason_labels_are_shortened(text, label):
    assert shorten_reason(text) == label


def test_reason_word():
    assert reason_word("Resources") == "Resources"
    assert reason_word("ReqNodeNotAvail, UnavailableNodes:n[1-9]") == "ReqNodeNotAvail"
    assert reason_word("") == ""


def test_powered_down_nodes_are_no_targets():
    states = {"n1": (), "n2": ("powered_down",), "n3": ("powering_down",), "n4": ("drain",)}
    nodes = [ClusterNode(name, "idle", frozenset(each), ()) for name, each in states.items()]
    collector = cluster_collector(
        Clock(), nodes=lambda: [*nodes, ClusterNode("n5", "future", frozenset(), ())]
    )
    assert collector.node_names() is None  # not read yet
    collector.refresh()
    assert collector.node_names() == ["n1", "n4"]


_JOB = b"Job Id: 1.s\n    job_state = R\n    comment = a\n"


@pytest.mark.parametrize(
    ("part", "read", "output", "twice", "name"),
    [
        ("nodes", slurm_text.nodes, b"NodeName=n1 State=IDLE", b" State=DOWN", "State"),
        ("licenses", slurm_text.licenses, b"LicenseName=a Total=4", b" Total=9", "Total"),
        ("jobs", lambda text: pbs.jobs(parse_text_jobs(text)), _JOB,
         b"    comment = b\n", "comment"),
        ("jobs", lambda text: pbs.jobs(parse_json_jobs(b'{"Jobs": {"1.s": {%s}}}' % text)),
         b'"comment": "a"', b', "comment": "b"', "comment"),
    ],
)  # fmt: skip
def test_name_that_stands_twice_is_counted_and_the_row_kept(
    part, read, output, twice, name, caplog
):
    outputs = [output, output + twice]
    collector = cluster_collector(Clock(), **{part: lambda: read(outputs[-1])})
    collector.refresh()
    assert sample_values(collector)["damaged_values", part] == 1
    assert len(read(output + twice)) == 1
    assert f"{name!r} stands twice" in caplog.text
    outputs.pop()
    collector.refresh()
    assert sample_values(collector)["damaged_values", part] == 0
