"""GPUs of a real Slurm on cgroup v2, in an emulated machine: by the kernel's device programs.

What the exporters told there is told again here, to those who watch a node.
"""

import json
import lzma
from pathlib import Path

import pytest

from tests.e2e import emulated, idle_gpus, prometheus, watched_node
from tests.e2e.exporter import parse
from tests.e2e.idle_jobs import FORGING, IDLE, INFO, WORKING
from tests.e2e.replayed_scrapes import replayed
from tests.e2e.watched_node import ALONE, CLUSTERS, HELPED

pytestmark = pytest.mark.e2e

STARTED = "batchjob_job_start_time_seconds"

RECORDED = Path(__file__).parents[1] / "fixtures/scraped/slurm-22.05-v2-gpus.json.xz"


@pytest.fixture(scope="module")
def recording(tmp_path_factory, long_form):
    """Of a machine that is emulated now with --long, and otherwise was when it was recorded."""
    if not long_form:
        return json.loads(lzma.decompress(RECORDED.read_bytes()))
    if why_not := emulated.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("guest")
    log = emulated.run("tests.e2e.guest_slurm_gpus /run/out", folder, emulated.kernels()[-1])
    report_file = folder / "report.json"
    assert report_file.exists(), log
    return json.loads(report_file.read_text())


@pytest.fixture(scope="module")
def jobs(recording):
    """Ids by user."""
    return {user: job["jobid"] for user, job in recording["jobs"].items()}


@pytest.fixture(scope="module")
def watched(recording, tmp_path_factory):
    """Those who watch, since the jobs of the recording run, and scrapes before that."""
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("watched")
    accounting = folder / "accounting.jsonl"
    accounting.touch()
    sources = {"jsonl": {"path": str(accounting)}}
    names = {"alone": ALONE, "helped": HELPED}
    with (
        replayed(recording, names) as replay,
        watched_node.watching(folder, recording["node"], replay.exporters, sources) as node,
    ):
        before = {cluster: idle_gpus.healthy(node, cluster) for cluster in CLUSTERS}
        moved = replay.begin() - recording["began"]
        told = parse(recording["during"][-1]["alone"][1], 0.0)
        records = (
            accounted(
                recording["node"], user, job, int(told.value(STARTED, jobid=job["jobid"]) + moved)
            )
            for user, job in recording["jobs"].items()
        )
        accounting.write_text("".join(f"{json.dumps(each)}\n" for each in records))
        yield node, before


def accounted(node, user, job, began):
    """What accounting tells of a running job."""
    gpus = {"gpus": job["gpus"]} if job["gpus"] else {}
    return {
        "jobid": job["jobid"], "user": user, "state": job["state"], "submit_time": began,
        "start_time": began, "allocated_cpus": 1, "allocated_nodes": 1, "node_list": node,
        "nodes": [{"node": node, "cpus": 1, **gpus}], "name": "idle" if user == IDLE else "job.sh",
        **({"allocated_gpus": job["gpus"]} if gpus else {}),
    }  # fmt: skip


def test_the_helper_tells_whose_a_gpu_is_that_was_never_touched(recording, jobs):
    helped = parse(recording["during"][-1]["helped"][1], 0.0)
    for user in (IDLE, WORKING):
        ((labels, _),) = helped.series(INFO, jobid=jobs[user])
        assert (labels["source"], labels["confirmed"]) == ("devices", "true")
        assert labels["user"] == user
    assert helped.series(INFO, jobid=jobs[FORGING]) == []


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_it_is_idle_in_lists_and_pages(watched, jobs, cluster):
    idle_gpus.assert_listed_alone(watched[0], cluster, jobs)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_alert_on_it_fires_within_its_time(watched, jobs, cluster, tmp_path):
    node, before = watched
    idle_gpus.assert_alert_fires(node, cluster, before[cluster], jobs[IDLE], tmp_path)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_its_owner_is_told_once(watched, jobs, cluster):
    idle_gpus.assert_owner_told_once(watched[0], cluster, jobs)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_who_names_it_gains_nothing(watched, jobs, cluster):
    idle_gpus.assert_forger_gains_nothing(watched[0], cluster, jobs)
