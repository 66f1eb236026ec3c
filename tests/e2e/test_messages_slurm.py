"""Jobs of a real Slurm end, fail and leave GPUs idle: who hears of it, and where it is seen.

The exporters have the rights of the unit; the GPUs are simulated.
"""

import json
import re
from functools import partial

import pytest

from tests.e2e import messages_site
from tests.e2e.messages_site import CLUSTERS
from tests.e2e.workload import command
from tests.fake_nvml.library import GPU
from tests.helpers.waiting import until
from tests.prometheus import chain

pytestmark = pytest.mark.e2e

CPU_SECONDS = 8
ANOTHERS_GPU = GPU["uuid"].format(n=0)
FORGED = f"export CUDA_VISIBLE_DEVICES={ANOTHERS_GPU} SLURM_JOB_GPUS=0 SLURM_STEP_GPUS=0"
ENDING, IDLE, WORKING, FORGING = ("alice", "bob"), "carol", "erin", "dave"
# A GPU counts as free until the process that has begun to use it is listed, which takes 0.1 s.
IDLE_LINE = r"\] 0(\.[0-4])? %, 0(\.00\d*)? of 1 GPUs"
OBSERVED = "batchjob_job_free_gpu_observed_seconds_total"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with messages_site.running(tmp_path_factory.mktemp("messages")) as running:
        yield running


@pytest.fixture(scope="module")
def before(site):
    """Scrapes before there is any job, by cluster."""
    recordings = {name: chain.Recording() for name in CLUSTERS}
    for name, recording in recordings.items():
        recording.slack_seconds = 62 * 60  # the alert is of jobs that are an hour old
        recording.healthy(*targets(site, name))
    return recordings


@pytest.fixture(scope="module")
def jobs(site, before):
    """Ids by user: two end, one holds an idle GPU, one uses its own, one names another's."""
    submit = site.slurm.submit
    wait = "sleep 3600"
    running = {
        IDLE: submit(IDLE, wait, "--gres=gpu:1", "--job-name=idle"),
        WORKING: submit(WORKING, wait, "--gres=gpu:1"),
        FORGING: submit(FORGING, f"{FORGED}\n{wait}"),
    }
    site.slurm.wait(*running.values(), state="RUNNING")
    pid = until(lambda: site.sleeping(running[WORKING]), "a process of the job")
    site.gpus.work(3, 80, pid)
    ended = {
        "alice": submit("alice", command(CPU_SECONDS), "--job-name=train", "--mail-type=END"),
        "bob": submit("bob", f"{command(CPU_SECONDS)}; exit 3", "--job-name=broken"),
    }
    site.slurm.wait(*ended.values(), timeout=240)
    return running | ended


def mails(site, user, job, cluster):
    """What a user was told of a job."""
    sent = zip(site.relay.mails, site.relay.recipients, strict=True)
    own = [mail for mail, to in sent if to == [f"{user}@example.org"]]
    about = re.compile(rf"\[batchjob\] Job {job} .*on {cluster}: ")
    return [mail for mail in own if about.match(mail["Subject"])]


def targets(site, cluster):
    """The exporter and the poller as Prometheus has them."""
    exporter = chain.node(site.exporters[cluster].address, site.slurm.nodes[0], cluster)
    return exporter, chain.poller(site.poller)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("user", "name", "state", "exit_code"),
    [("alice", "train", "COMPLETED", 0), ("bob", "broken", "FAILED", 3)],
)
def test_mail_has_the_final_figures(site, jobs, cluster, user, name, state, exit_code):
    (mail,) = until(partial(mails, site, user, jobs[user], cluster), "a mail", 180, 1)
    assert mail["Subject"] == f"[batchjob] Job {jobs[user]} ({name}) on {cluster}: {state}"
    text = mail.get_body(("plain",)).get_content()
    assert f"Exit code {exit_code}" in text
    assert "not stored yet" not in text
    assert "The report is missing" not in text
    (line,) = (line for line in text.splitlines() if line.strip().startswith("CPU  "))
    assert "of" in line
    assert "%" in line
    page = mail.get_body(("html",)).get_content()
    assert f"<h1>Job {jobs[user]} on {cluster}</h1>" in page


def test_mail_of_slurm_has_the_report(site, jobs):
    """slurmctld calls its MailProg at the end of the job that asked for a mail, and of no other."""
    told = until(lambda: slurms_own_mails(site), "Slurm's mail", 180, 1)
    ((recipients, mail),) = told
    assert recipients == ["alice"]
    assert re.search(rf"Job_id={jobs['alice']} Name=train Ended, .*COMPLETED", mail["Subject"])
    text = mail.get_content()
    assert text.startswith(f"Job ID: {jobs['alice']}\r\n")
    assert "State: COMPLETED (exit code 0)" in text
    (utilized,) = re.findall(r"CPU Utilized: 00:00:(\d\d)", text)
    assert CPU_SECONDS <= int(utilized) <= CPU_SECONDS + 1


def slurms_own_mails(site):
    sent = zip(site.relay.recipients, site.relay.mails, strict=True)
    return [(to, mail) for to, mail in sent if mail["From"] == "slurm@example.org"]


def idle_jobs(site, cluster, **parameters):
    rows = site.rows("/stats/idle-gpus", cluster=cluster, held_at_least="10s", **parameters)
    return {row["jobid"]: row for row in rows}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_gpu_that_was_never_touched_is_idle_in_lists_and_pages(site, jobs, cluster):
    row = until(lambda: idle_jobs(site, cluster).get(jobs[IDLE]), "the idle list", 120, 1)
    nothing = pytest.approx(0, abs=0.005)
    assert (row["user"], row["idle_gpus"], row["gpu_utilization_ratio"]) == (IDLE, 1, nothing)
    assert idle_jobs(site, cluster).keys() == {jobs[IDLE]}
    (job,) = site.rows(f"/jobs/{jobs[IDLE]}", cluster=cluster)
    assert (job["gpus_held"], job["usage_gpu_utilization_ratio"]) == (1, nothing)
    (device,) = site.rows(f"/jobs/{jobs[IDLE]}/gpus", cluster=cluster)
    assert device["utilization_ratio"] == nothing
    listed = site.get("/jobs", cluster=cluster, gpu_utilization_at_most="1%", state="RUNNING")
    assert jobs[IDLE] in listed
    assert jobs[WORKING] not in listed
    report = site.get(f"/api/v1/jobs/{jobs[IDLE]}/report", IDLE, cluster=cluster, format="text")
    assert re.search(IDLE_LINE, report)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_alert_on_idle_gpus_fires_within_its_time(site, jobs, before, cluster, tmp_path):
    """Real scrapes of seconds, each of which stands for half a minute: the alert takes 92."""
    exporter, poller = targets(site, cluster)
    risen = chain.counter_rise(exporter, OBSERVED, jobid=jobs[IDLE])
    before[cluster].faulty(exporter, poller, between=risen)
    before[cluster].assert_fires("BatchjobGpuIdle", tmp_path, jobs[IDLE])


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_owner_of_an_idle_gpu_is_told_once(site, jobs, cluster):
    (mail,) = until(partial(mails, site, IDLE, jobs[IDLE], cluster), "a mail", 120, 1)
    assert f" (idle) on {cluster}: GPUs idle for 1 min" in mail["Subject"]
    text = mail.get_body(("plain",)).get_content()
    assert re.search(IDLE_LINE, text), text
    assert mails(site, WORKING, jobs[WORKING], cluster) == []


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_who_names_anothers_gpu_gains_nothing(site, jobs, cluster):
    scrape = site.exporters[cluster].scrape()
    assert not scrape.series("batchjob_job_gpu_info", jobid=jobs[FORGING])
    assert scrape.series("batchjob_job_gpu_info", jobid=jobs[WORKING], confirmed="true")
    (job,) = site.rows(f"/jobs/{jobs[FORGING]}", cluster=cluster)
    assert (job["gpus_held"], job["usage_gpus"]) == (None, None)
    for name in ("batchjob_gpu_power_watts", "batchjob_gpu_utilization_ratio"):
        answer = site.get("/api/v1/prometheus/api/v1/query", FORGING, query=name)
        assert json.loads(answer)["data"]["result"] == []


def test_each_end_is_told_of_once(site, jobs):
    assert all(
        len(mails(site, user, jobs[user], name)) == 1 for user in ENDING for name in CLUSTERS
    )
