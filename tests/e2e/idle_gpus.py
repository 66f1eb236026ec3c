"""What the three jobs of `idle_jobs` look like to those who watch their node, and who is told."""

import json
import re
from collections.abc import Mapping
from email.message import EmailMessage
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.idle_jobs import FORGING, IDLE, INFO, OBSERVED, WORKING
from tests.e2e.watched_node import WatchedNode
from tests.helpers.waiting import until
from tests.prometheus import chain

# A GPU counts as free until the process that has begun to use it is listed, which takes 0.1 s.
IDLE_LINE = r"\] 0(\.[0-4])? %, 0(\.00\d*)? of 1 GPUs"


def assert_listed_alone(node: WatchedNode, cluster: str, jobs: Mapping[str, str]) -> None:
    """One job is idle in lists, filter, API and report; `jobs` are by user."""
    row = until(lambda: _idle_jobs(node, cluster).get(jobs[IDLE]), "the idle list", 120, 1)
    nothing = pytest.approx(0, abs=0.005)
    assert (row["user"], row["idle_gpus"], row["gpu_utilization_ratio"]) == (IDLE, 1, nothing)
    assert _idle_jobs(node, cluster).keys() == {jobs[IDLE]}
    (job,) = node.rows(f"/jobs/{jobs[IDLE]}", cluster=cluster)
    assert (job["gpus_held"], job["usage_gpu_utilization_ratio"]) == (1, nothing)
    (device,) = node.rows(f"/jobs/{jobs[IDLE]}/gpus", cluster=cluster)
    assert device["utilization_ratio"] == nothing
    listed = node.get("/jobs", cluster=cluster, gpu_utilization_at_most="1%", state="RUNNING")
    assert jobs[IDLE] in listed
    assert jobs[WORKING] not in listed
    path = f"/api/v1/jobs/{jobs[IDLE]}/report"
    assert re.search(IDLE_LINE, node.get(path, IDLE, cluster=cluster, format="text"))


def _idle_jobs(node, cluster):
    rows = node.rows("/stats/idle-gpus", cluster=cluster, held_at_least="10s")
    return {row["jobid"]: row for row in rows}


def healthy(node: WatchedNode, cluster: str) -> chain.Recording:
    """Scrapes before there is any job."""
    recording = chain.Recording()
    recording.slack_seconds = 62 * 60  # the alert is of jobs that are an hour old
    recording.healthy(*node.targets(cluster))
    return recording


def assert_alert_fires(
    node: WatchedNode, cluster: str, before: chain.Recording, jobid: str, folder: Path
) -> None:
    """Scrapes of seconds, each of which stands for half a minute: the alert takes 92."""
    exporter, poller = node.targets(cluster)
    told = {("__name__", "batchjob_stats_db_job_gpus"), ("cluster", cluster), ("jobid", jobid)}
    until(
        lambda: any(told <= set(key) for key in poller.scrape()), "the poller tells the job", 120, 1
    )
    risen = chain.counter_rise(exporter, OBSERVED, jobid=jobid)
    before.faulty(exporter, poller, between=risen)
    before.assert_fires("BatchjobGpuIdle", folder, jobid)


def assert_owner_told_once(node: WatchedNode, cluster: str, jobs: Mapping[str, str]) -> None:
    """One mail to the owner of the idle GPU, none to the owner of the other."""
    (mail,) = until(partial(mails, node, IDLE, jobs[IDLE], cluster), "a mail", 120, 1)
    assert re.search(rf" \(idle\) on {cluster}: GPUs idle for \d min", mail["Subject"])
    text = mail.get_body(("plain",)).get_content()
    assert re.search(IDLE_LINE, text), text
    assert mails(node, WORKING, jobs[WORKING], cluster) == []


def mails(node: WatchedNode, user: str, job: str, cluster: str) -> list[EmailMessage]:
    """What a user was told of a job."""
    sent = zip(node.relay.mails, node.relay.recipients, strict=True)
    own = [mail for mail, to in sent if to == [f"{user}@example.org"]]
    about = re.compile(rf"\[batchjob\] Job {job} .*on {cluster}: ")
    return [mail for mail in own if about.match(mail["Subject"])]


def assert_forger_gains_nothing(node: WatchedNode, cluster: str, jobs: Mapping[str, str]) -> None:
    """Neither a GPU nor the figures of one."""
    of_jobs = f'{INFO}{{cluster="{cluster}",jobid="%s"}}'
    assert node.tsdb.query(of_jobs % jobs[FORGING]) == []
    (held,) = node.tsdb.query(of_jobs % jobs[WORKING])
    assert held.labels["confirmed"] == "true"
    (job,) = node.rows(f"/jobs/{jobs[FORGING]}", cluster=cluster)
    assert (job["gpus_held"], job["usage_gpus"]) == (None, None)
    for name in ("batchjob_gpu_power_watts", "batchjob_gpu_utilization_ratio"):
        answer = node.get("/api/v1/prometheus/api/v1/query", FORGING, query=name)
        assert json.loads(answer)["data"]["result"] == []
