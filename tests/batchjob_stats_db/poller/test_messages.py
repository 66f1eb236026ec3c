"""Messages about jobs: who is told of what, once, and what a site's relay makes of it."""

import pytest
import sqlalchemy as sa

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import outbox, schema
from tests.batchjob_stats_db.poller.message_site import answer_report, message_site
from tests.helpers.http_server import Response
from tests.helpers.mail_relay import Relay

SETTLED = outbox.FINAL_SECONDS


@pytest.fixture
def site(engine, store, tmp_path):
    with message_site(engine, store, tmp_path) as made:
        yield made


def ended(job, site, jobid="1", ago=60, **fields):
    """A job that has ended so many seconds ago."""
    end = site.now - ago
    return job(jobid, submit_time=end - 7200, start_time=end - 3600, end_time=end, **fields)


def measured(site):
    """The final figures of all jobs are stored."""
    with site.engine.begin() as db:
        db.execute(sa.update(schema.job).values(usage_due_time=None))


def test_mail_with_the_report_when_the_final_figures_are_stored(site, job):
    site.write(ended(job, site))
    site.send(after=300)
    assert site.relay.mails == []
    measured(site)
    site.send(after=60)
    (mail,) = site.relay.mails
    assert site.relay.recipients == [["alice@example.org"]]
    assert mail["Subject"] == "[batchjob] Job 1 (train) on c1: COMPLETED"
    text = mail.get_body(("plain",)).get_content()
    assert "The report /api/v1/jobs/1/report" in text
    assert "not stored yet" not in text
    assert "<h1>report</h1>" in mail.get_body(("html",)).get_content()
    assert mail["List-Unsubscribe"].startswith("<https://jobs.example.org/unsubscribe?user=alice&")
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    site.send(after=3600)
    assert len(site.relay.mails) == 1
    assert site.count("sent") == 1


def test_mail_without_final_figures_fifteen_minutes_after_the_end(site, job):
    site.write(ended(job, site))
    site.send(after=SETTLED - 61)
    assert site.relay.mails == []
    site.send(after=2)
    (mail,) = site.relay.mails
    assert "The final figures are not stored yet" in mail.get_body(("plain",)).get_content()


def test_mail_without_a_report_says_so(engine, store, tmp_path, job):
    with message_site(engine, store, tmp_path, lambda _: Response(status=503)) as site:
        site.write(ended(job, site))
        site.send(after=SETTLED)
        assert site.relay.mails == []
        site.send(after=2000)
        (mail,) = site.relay.mails
        text = mail.get_body(("plain",)).get_content()
        assert "The report is missing: messages.server: jobs/1/report: status 503" in text


@pytest.mark.parametrize(
    ("wishes", "state", "told"),
    [
        (["failure"], JobState.FAILED, 1),
        (["failure"], JobState.COMPLETED, 0),
        (["end", "failure"], JobState.FAILED, 1),
        (["started"], JobState.COMPLETED, 0),
    ],
)
def test_subscriptions_replace_the_default(engine, store, tmp_path, job, wishes, state, told):
    with message_site(engine, store, tmp_path, default=()) as site:
        for wish in wishes:
            site.subscribe("alice", wish)
        site.write(ended(job, site, state=state), ended(job, site, "2", user="bob", state=state))
        site.send(after=SETTLED)
        assert len(site.relay.mails) == told


def test_default_switched_off_by_one_user(site, job):
    site.subscribe("alice", "end", "off")
    site.write(ended(job, site), ended(job, site, "2", user="bob"))
    site.send(after=SETTLED)
    assert site.relay.recipients == [["bob@example.org"]]


def test_named_job(engine, store, tmp_path, job):
    with message_site(engine, store, tmp_path, default=()) as site:
        site.subscribe("alice", "end", jobid="7")
        site.subscribe("bob", "end", jobid="8")
        site.write(*(ended(job, site, each) for each in ("7", "8")))  # both of alice
        site.send(after=SETTLED)
        assert site.subjects == ["[batchjob] Job 7 (train) on c1: COMPLETED"]


def test_start(engine, store, tmp_path, job):
    with message_site(engine, store, tmp_path, default=()) as site:
        site.subscribe("alice", "started")
        waiting = job(state=JobState.PENDING, start_time=None, end_time=None, nodes=())
        site.write(waiting)
        site.write(waiting._replace(state=JobState.RUNNING, start_time=site.now))
        site.send(after=300)
        assert site.subjects == ["[batchjob] Job 1 (train) on c1: started"]


def test_nothing_is_told_of_what_is_old_or_was_known(site, job, store):
    site.write(ended(job, site, ago=2 * 86400))
    site.write(recent := ended(job, site, "2"))
    site.write(recent)
    site.send(after=SETTLED)
    site.write(recent._replace(exit_code=1))
    site.send(after=SETTLED)
    assert len(site.relay.mails) == 1


def test_requeued_before_the_message(site, job):
    record = ended(job, site, state=JobState.FAILED)
    site.write(record)
    with site.engine.begin() as db:  # accounting took the end back
        db.execute(sa.update(schema.job).values(end_time=None, state="PENDING"))
    site.send(after=SETTLED)
    assert site.relay.mails == []
    assert site.count("dropped") == 1


def test_refusals(site, job):
    """4xx is tried again, with longer pauses; 5xx is given up and counted."""
    answers = {"alice@example.org": "450 greylisted", "bob@example.org": "550 no such user"}
    site.relay.answer_recipient = answers.get
    site.write(ended(job, site), ended(job, site, "2", user="bob"))
    site.send(after=SETTLED)
    assert (site.count("failed"), site.count("sent")) == (1, 0)
    answers.clear()
    site.send(after=10)
    assert site.relay.mails == []
    site.send(after=21)
    assert site.relay.recipients == [["alice@example.org"]]


def test_relay_that_is_down_for_an_hour(site, job, monkeypatch):
    monkeypatch.setattr("batchjob_stats_db.poller.messages.sender._SPARED_SECONDS", 0.0)
    address = site.relay.address
    site.relay.stop()
    site.write(*(ended(job, site, str(number)) for number in range(3)))
    for _ in range(12):
        site.send(after=SETTLED // 3)
    assert (site.count("failed"), site.count("dropped")) == (0, 0)
    site.relay = Relay(port=int(address.rpartition(":")[2]))
    site.send(after=3600)
    assert len(site.relay.mails) == 3


def test_messages_too_old_are_dropped(site, job):
    """As after a database was restored, or a relay was down for days."""
    site.write(ended(job, site))
    site.send(after=86400 + 1)
    assert site.relay.mails == []
    assert site.count("dropped") == 1


def test_clock_that_was_set_back_does_not_stop_messages(site, job):
    site.write(ended(job, site))
    site.relay.answer_recipient = {"alice@example.org": "450 later"}.get
    site.send(after=SETTLED)
    site.relay.answer_recipient = lambda _: None
    site.now -= 7200
    site.send()
    site.now += 7200
    site.send(after=60)
    assert len(site.relay.mails) == 1


HOSTILE = "x\r\nBcc: eve@example.org\r\n\r\n<script>alert(1)</script>=?utf-8?q?=0ABcc:_e@e?="


def test_hostile_names(site, job):
    site.write(ended(job, site, name=HOSTILE), ended(job, site, "2", user="eve@evil.org,x"))
    site.send(after=SETTLED)
    (mail,) = site.relay.mails
    assert site.relay.recipients == [["alice@example.org"]]
    assert mail["Bcc"] is None
    page = mail.get_body(("html",)).get_content()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert site.count("failed") == 1


def test_storm_becomes_one_summary(site, job, long_form):
    number = 10_000 if long_form else 300
    for begin in range(0, number, 1000):
        site.write(
            *(
                ended(job, site, str(each), user=f"user{each % 3}",
                      state=JobState.FAILED if each % 100 < 3 else JobState.COMPLETED)
                for each in range(begin, min(begin + 1000, number))
            )
        )  # fmt: skip
        site.send(after=6)
    for _ in range(5):
        site.send(after=200)
    assert len(site.relay.mails) == 3
    each = number // 3
    assert f"{each} jobs on c1: " in min(site.subjects)
    text = site.relay.mails[0].get_body(("plain",)).get_content()
    assert "FAILED after 1 h" in text
    assert "more" in text
    assert site.count("sent") == number


def test_quiet_hours(site, job):
    minute = site.now % 86400 // 60
    begin, end = (f"{at // 60 % 24:02}:{at % 60:02}" for at in (minute, minute + 60))
    site.subscribe("alice", "end", quiet_hours=f"{begin}-{end}")
    site.write(ended(job, site))
    site.send(after=SETTLED)
    assert site.relay.mails == []
    site.send(after=3600)
    assert len(site.relay.mails) == 1


def test_address_from_a_command(engine, store, tmp_path, job):
    program = tmp_path / "address"
    program.write_text('#!/bin/sh\n[ "$1" = alice ] && echo a.smith@example.org\nexit 0\n')
    program.chmod(0o755)
    with message_site(engine, store, tmp_path, address_command=str(program)) as site:
        site.write(ended(job, site), ended(job, site, "2", user="bob"))
        site.send(after=SETTLED)
        assert site.relay.recipients == [["a.smith@example.org"]]
        assert site.count("failed") == 1


def test_done_messages_are_deleted_in_the_end(site, job, rows):
    site.write(ended(job, site))
    site.send(after=SETTLED)
    assert [row["state"] for row in rows(schema.outbox)] == ["sent"]
    site.now += 3 * 86400
    site.causes.look()
    assert rows(schema.outbox) == []


def test_relay_and_server_are_checked(engine, store, tmp_path):
    with message_site(engine, store, tmp_path) as site:
        assert site.sender.check() == []
    assert [line.partition(":")[0] for line in site.sender.check()] == [
        "messages.smtp", "messages.server",
    ]  # fmt: skip


def test_report_server_answers_for_the_run(site, job):
    site.write(ended(job, site))
    site.send(after=SETTLED)
    reports = [request for request in site.server.requests if "report" in request.path]
    assert {request.form["cluster"][0] for request in reports} == {"c1"}
    assert answer_report(reports[0]).status == 200


def measure(site, until, **values):
    """Store what was measured of job 1 until then."""
    row = {"job_id": 1, "source": "prometheus", "measured_time": until, "until_time": until,
           "samples": 1, "dropped_series": 0, "nodes": 1, "coverage": 1.0, **values}  # fmt: skip
    with site.engine.begin() as db:
        db.execute(sa.delete(schema.job_usage))
        db.execute(sa.insert(schema.job_usage).values(row))


@pytest.fixture
def running(site, job):
    """A job with two GPUs that has just started, of a user who wants to know of idle GPUs."""
    site.subscribe("alice", "idle=30m")
    site.write(job(state=JobState.RUNNING, start_time=site.now, end_time=None, allocated_gpus=2))
    return site.now


def gpus(site, start, busy, observed=1.0):
    """Two GPUs that were busy for so many seconds together, and observed for part of the time."""
    seen = 2 * (site.now - start) * observed
    measure(site, site.now, gpus=2, gpu_busy_seconds=busy, gpu_observed_seconds=seen)
    site.causes.look()
    site.send(after=300)


def test_idle_gpus_from_the_start(site, running):
    site.now += 1200
    gpus(site, running, busy=0)
    assert site.relay.mails == []
    for _ in range(5):
        site.now += 600
        gpus(site, running, busy=0)
    assert site.subjects == ["[batchjob] Job 1 (train) on c1: GPUs idle for 35 min"]


def test_idle_gpus_of_a_young_job_whose_counters_follow(site, job):
    """What was observed is told, as soon as it is long enough."""
    site.subscribe("alice", "idle=5m")
    site.write(job(state=JobState.RUNNING, start_time=site.now, end_time=None, allocated_gpus=2))
    for minute in range(1, 9):
        site.now += 60
        observed = 2 * (60 * minute - 45)
        measure(site, site.now, gpus=2, gpu_busy_seconds=0, gpu_observed_seconds=observed)
        site.causes.look()
    site.send(after=300)
    assert site.subjects == ["[batchjob] Job 1 (train) on c1: GPUs idle for 5 min 15 s"]


def test_gpus_that_were_busy_once_and_are_idle_since(site, running):
    busy = 0
    for minute in range(60):
        busy += 120 if minute < 15 else 0
        gpus(site, running, busy)
    (subject,) = site.subjects
    assert "GPUs idle for" in subject


@pytest.mark.parametrize(("busy", "observed"), [(0.05, 1.0), (0.0, 0.5)])
def test_working_or_unseen_gpus_are_not_called_idle(site, running, busy, observed):
    for _ in range(20):
        gpus(site, running, 2 * (site.now - running) * busy, observed)
    assert site.relay.mails == []


def test_memory(site, job):
    site.subscribe("alice", "memory=90%")
    site.write(job(state=JobState.RUNNING, start_time=site.now, end_time=None))
    for gigabytes in (6, 7, 7.5, 8):
        site.now += 60
        measure(site, site.now, memory_peak_bytes=int(gigabytes * 2**30))
        site.causes.look()
        site.send(after=200)
    (mail,) = site.relay.mails
    assert mail["Subject"].startswith("[batchjob] Job 1 (train) on c1: memory at 93 %")


MONDAY = 1_775_433_600  # 2026-04-06, midnight UTC


@pytest.fixture
def week(engine, store, tmp_path):
    """A week in which alice and bob worked for physics; dave coordinates it."""
    with message_site(engine, store, tmp_path, default=()) as site:
        sums = dict.fromkeys(schema.DAILY_SUMS, 0.0)
        days = [{"cluster": "c1", "day": MONDAY - 86400, "account": "physics", "username": user,
                 **sums} for user in ("alice", "bob")]  # fmt: skip
        with engine.begin() as db:
            db.execute(sa.insert(schema.daily_usage), days)
            db.execute(
                sa.insert(schema.association).values(
                    cluster="c1", account="physics", username="dave", role="coordinator",
                    is_default=0, since_time=0,
                )
            )  # fmt: skip
        yield site


def test_weekly_digest(week):
    week.subscribe("alice", "digest")
    week.subscribe("carol", "digest")  # without a job in this week
    week.subscribe("dave", "digest", account="physics")
    week.subscribe("eve", "digest", account="physics")  # coordinates nothing
    for week.now in (MONDAY + 3600, MONDAY + 7 * 3600, MONDAY + 9 * 3600, MONDAY + 40 * 3600):
        week.causes.look()
        week.send(after=200)
    assert sorted(week.recipients) == ["alice@example.org", "dave@example.org"]
    assert sorted(week.subjects) == [
        "[batchjob] The week of account physics on c1", "[batchjob] The week on c1",
    ]  # fmt: skip
    asked = {request.query for request in week.server.requests if "digest" in request.path}
    assert any(f"account=physics&cluster=c1&until={MONDAY}" in query for query in asked)
    assert any(f"user=alice&cluster=c1&until={MONDAY}" in query for query in asked)


def test_digest_of_an_account_that_is_coordinated_no_more(week):
    week.subscribe("dave", "digest", account="physics")
    with week.engine.begin() as db:
        db.execute(sa.delete(schema.association))
    week.now = MONDAY + 8 * 3600
    week.causes.look()
    week.send(after=200)
    assert week.relay.mails == []
