"""Jobs of a real Slurm end and fail; their users get mails with the final figures, once each."""

import contextlib
import os

import pytest
import yaml

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole, create
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.workload import command
from tests.grafana import stack
from tests.helpers.mail_relay import Relay
from tests.helpers.processes import free_ports
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

CPU_SECONDS = 8


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """The mails about a job of alice's that completed and one of bob's that failed, by user."""
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("messages")
    with contextlib.ExitStack() as made:
        relay = Relay()
        made.callback(relay.stop)
        cluster = made.enter_context(slurm.cluster(cgroup=1))
        target = made.enter_context(
            exporter.running("--collector.jobs.linger=10s", inside=cluster.inside())
        )
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        scraping = stack.prometheus_configuration(
            folder, {stack.CLUSTER: [target.address]}, poller, server
        )
        tsdb = made.enter_context(prometheus.serving(scraping))
        config = stack.write_configuration(folder, tsdb.url, {"sacct": {}}, poller, server)
        polling = config / "stats_db.yml"
        _configure_messages(polling, relay.address, f"http://{server}", _token(folder))
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
        environ = {**cluster.environ, "PATH": path}
        made.enter_context(
            stack.running_program(
                "batchjob_stats_db", polling, inside=cluster.inside(), environ=environ
            )
        )
        jobs = {
            "alice": cluster.submit("alice", command(CPU_SECONDS), "--job-name=train"),
            "bob": cluster.submit("bob", f"{command(CPU_SECONDS)}; exit 3", "--job-name=broken"),
        }
        cluster.wait(*jobs.values(), timeout=240)
        until(lambda: len(relay.mails) >= len(jobs), "mails about both jobs", 180, 1)
        mails = dict(
            zip((to[0].split("@")[0] for to in relay.recipients), relay.mails, strict=True)
        )
        yield jobs, mails, relay


def _token(folder):
    """A file with the token of a viewer, in a new database."""
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    with engine.begin() as db:
        text = create(db, "messages", TokenRole.VIEWER, "messages", 0)
    engine.dispose()
    file = folder / "messages.token"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def _configure_messages(file, relay, server, token):
    settings = yaml.safe_load(file.read_text())
    settings["messages"] = {
        "server": server, "token-file": token, "smtp": relay, "smtp-tls": "none",
        "sender": "batchjob@example.org", "address": "{user}@example.org",
        "default": ["end"], "gather": "1s",
    }  # fmt: skip
    file.write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize(
    ("user", "name", "state", "exit_code"),
    [("alice", "train", "COMPLETED", 0), ("bob", "broken", "FAILED", 3)],
)
def test_mail_has_the_final_figures(sent, user, name, state, exit_code):
    jobs, mails, _ = sent
    mail = mails[user]
    assert mail["Subject"] == f"[batchjob] Job {jobs[user]} ({name}) on {stack.CLUSTER}: {state}"
    text = mail.get_body(("plain",)).get_content()
    assert f"Exit code {exit_code}" in text
    assert "not stored yet" not in text
    assert "The report is missing" not in text
    (line,) = (line for line in text.splitlines() if line.strip().startswith("CPU  "))
    assert "of" in line
    assert "%" in line
    page = mail.get_body(("html",)).get_content()
    assert f"<h1>Job {jobs[user]} on {stack.CLUSTER}</h1>" in page


def test_each_job_is_told_of_once(sent):
    _, mails, relay = sent
    assert len(relay.mails) == len(mails) == 2
