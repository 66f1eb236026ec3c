"""Citizens who speak of what is not theirs, by its id alone."""

import os
import uuid

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.timeseries.base import SeriesValue
from tests.security.citizens.citizen import CITIZEN_UID, VICTIM_UID, citizen, write_run
from tests.security.one_bad_citizen import CITIZEN, NODES, series_labels

BY_ID = "believed by id"


def lie_about_all_jobs(site, metric, value, **changes):
    def lie(jobid):
        job = site.jobs.get(jobid)
        if job and job.user != CITIZEN:
            node = changes.get("instance", next(n for n in NODES if n not in job.nodes))
            labels = series_labels(job, node.removesuffix(":10910"), **changes)
            for statistic in (Statistic.TOTAL, Statistic.PEAK, Statistic.COUNT):
                yield statistic, SeriesValue(metric, labels, value)

    site.nodes.lies = [lie]


@citizen(BY_ID)
def node_speaks_of_jobs_of_other_nodes(site, dice):
    metric = dice.choice(["batchjob_job_cpu_seconds_total", "batchjob_job_memory_peak_bytes"])
    lie_about_all_jobs(site, metric, dice.uniform(1, 1e9), mode="user")


@citizen(BY_ID)
def series_of_another_login_with_the_ids_of_all_jobs(site, dice):
    def lie(jobid):
        job = site.jobs.get(jobid)
        if job and job.user != CITIZEN:
            labels = series_labels(job, dice.choice(job.nodes), mode="user", user=CITIZEN)
            yield Statistic.TOTAL, SeriesValue("batchjob_job_cpu_seconds_total", labels, 5e8)

    site.nodes.lies = [lie]


@citizen(BY_ID)
def node_speaks_for_the_scheduler(site, dice):
    labels = {"job": "nodes", "instance": "n199:10910", "node": dice.choice(NODES[:4])}
    site.nodes.latest_lies = [
        SeriesValue("batchjob_cluster_node_info", {**labels, "state": "down"}, 1.0),
        SeriesValue("batchjob_cluster_node_cpus", labels, dice.choice([0.0, 1e6, 1e300])),
        SeriesValue("batchjob_cluster_node_cpus", {"job": "nodes"}, 1.0),
    ]
    site.now += 3600  # so that the last reading is not shown


@citizen(BY_ID)
def node_claims_the_gpu_of_another(site, dice):
    """The other's job shows its own GPU's power, not what the node says of it."""
    job = next(reversed([each for each in site.jobs.values() if each.user == "alice"]))
    liar = next(node for node in reversed(NODES) if node not in job.nodes)
    info = "batchjob_job_gpu_info"
    true = series_labels(job, job.nodes[0], uuid="GPU-1", gpu="0", confirmed="true")
    false = series_labels(job, liar, uuid="GPU-1", gpu=str(dice.randrange(8)), confirmed="true")
    claim = series_labels(job, job.nodes[1], uuid="GPU-2", gpu="1", confirmed="false")
    watts = "batchjob_gpu_power_watts"
    site.nodes.latest_lies = [
        SeriesValue(info, true, 1.0),
        SeriesValue(info, false, 1.0),
        SeriesValue(info, claim, 1.0),
        SeriesValue(watts, {"instance": true["instance"], "uuid": "GPU-1"}, 100.0),
        SeriesValue(watts, {"instance": f"{liar}:10910", "uuid": "GPU-1"}, dice.uniform(200, 900)),
        SeriesValue(watts, {"instance": claim["instance"], "uuid": "GPU-2"}, 300.0),
    ]
    answer = site.get("alice", f"/api/v1/jobs/{job.jobid}/metrics?metric=gpu_power")
    assert answer.status_code == 200, answer.text
    assert {row["mean"] for row in answer.json()} == {100.0}


@citizen(BY_ID)
def record_of_another_user_with_the_id_of_a_job(site, dice):
    """Of JSON lines an administrator decides; a run belongs to who wrote its file."""
    run, owner = str(uuid.uuid4()), CITIZEN_UID
    write_run(site, run, VICTIM_UID, owner)
    site.poll()
    with site.engine.connect() as db:
        assert not site.find(db, run), "a run in the name of another was recorded"


@citizen(BY_ID)
def deletion_of_the_run_of_another(site, dice):
    run = str(uuid.uuid4())
    write_run(site, run, VICTIM_UID, VICTIM_UID)
    site.poll()
    tombstone = site.data / "runs" / f"{run}.deleted"
    tombstone.touch()
    os.chown(tombstone, CITIZEN_UID, -1)
    site.poll()
    with site.engine.connect() as db:
        assert site.find(db, run), "a run of another was deleted"
