"""Jobs of a real Slurm end, fail and leave GPUs idle: who hears of it, and where it is seen.

The exporters have the rights of the unit; the GPUs are simulated.
"""

import re
from functools import partial

import pytest

from tests.e2e import idle_gpus, idle_jobs, messages_site
from tests.e2e.idle_gpus import mails
from tests.e2e.idle_jobs import IDLE
from tests.e2e.watched_node import CLUSTERS
from tests.e2e.workload import command
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

CPU_SECONDS = 8
ENDING = ("alice", "bob")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with messages_site.running(tmp_path_factory.mktemp("messages")) as running:
        yield running


@pytest.fixture(scope="module")
def before(site):
    """Scrapes before there is any job, by cluster."""
    return {name: idle_gpus.healthy(site.node, name) for name in CLUSTERS}


@pytest.fixture(scope="module")
def jobs(site, before):
    """Ids by user: two end, one holds an idle GPU, one uses its own, one names another's."""
    submit = site.slurm.submit
    running = idle_jobs.submit(site.slurm, site.gpus)
    ended = {
        "alice": submit("alice", command(CPU_SECONDS), "--job-name=train", "--mail-type=END"),
        "bob": submit("bob", f"{command(CPU_SECONDS)}; exit 3", "--job-name=broken"),
    }
    site.slurm.wait(*ended.values(), timeout=240)
    return running | ended


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("user", "name", "state", "exit_code"),
    [("alice", "train", "COMPLETED", 0), ("bob", "broken", "FAILED", 3)],
)
def test_mail_has_the_final_figures(site, jobs, cluster, user, name, state, exit_code):
    (mail,) = until(partial(mails, site.node, user, jobs[user], cluster), "a mail", 180, 1)
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
    sent = zip(site.node.relay.recipients, site.node.relay.mails, strict=True)
    return [(to, mail) for to, mail in sent if mail["From"] == "slurm@example.org"]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_gpu_that_was_never_touched_is_idle_in_lists_and_pages(site, jobs, cluster):
    idle_gpus.assert_listed_alone(site.node, cluster, jobs)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_alert_on_idle_gpus_fires_within_its_time(site, jobs, before, cluster, tmp_path):
    idle_gpus.assert_alert_fires(site.node, cluster, before[cluster], jobs[IDLE], tmp_path)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_owner_of_an_idle_gpu_is_told_once(site, jobs, cluster):
    idle_gpus.assert_owner_told_once(site.node, cluster, jobs)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_who_names_anothers_gpu_gains_nothing(site, jobs, cluster):
    idle_gpus.assert_forger_gains_nothing(site.node, cluster, jobs)


def test_each_end_is_told_of_once(site, jobs):
    assert all(
        len(mails(site.node, user, jobs[user], name)) == 1 for user in ENDING for name in CLUSTERS
    )
