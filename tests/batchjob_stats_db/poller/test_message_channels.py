"""Webhooks and ntfy: signed, never redirected, tried again; the relay with TLS and log-in."""

import hashlib
import hmac
import json
import ssl

import pytest
import trustme
from aiosmtpd.smtp import AuthResult

from batchjob_stats_db.database import subscriptions
from batchjob_stats_db.poller.messages import channels
from batchjob_stats_db.poller.messages.channels import SIGNATURE
from tests.batchjob_stats_db.poller.message_site import message_site
from tests.batchjob_stats_db.poller.test_messages import SETTLED, ended
from tests.helpers.http_server import Response, json_response, serving
from tests.helpers.mail_relay import Relay


@pytest.fixture
def hooks():
    """A server of webhooks, and a list whose last answer it gives."""
    answers = [Response(status=204)]
    with serving(lambda _: answers[-1]) as server:
        yield server, answers


def hook_site(engine, store, tmp_path, server, **given):
    return message_site(engine, store, tmp_path, webhook=(server.url,), default=(), **given)


def test_webhook_is_signed(engine, store, tmp_path, job, hooks):
    server, _ = hooks
    target = f"{server.url}/alice"
    with hook_site(engine, store, tmp_path, server) as site:
        site.subscribe("alice", "end", "webhook", target)
        site.write(ended(job, site))
        site.send(after=SETTLED)
        (request,) = server.requests
        with engine.begin() as db:
            key = subscriptions.signature(subscriptions.read_site(db), "webhook", f"alice {target}")
        signed = hmac.new(key.encode(), request.body, hashlib.sha256).hexdigest()
        assert request.headers[SIGNATURE] == f"sha256={signed}"
        document = json.loads(request.body)
        assert (document["schema"], document["event"], document["user"]) == (1, "end", "alice")
        assert document["jobs"][0]["jobid"] == "1"
        assert document["report"] == {"path": "/api/v1/jobs/1/report"}
        assert site.count("sent", "webhook") == 1


def test_webhook_that_redirects_is_not_followed(engine, store, tmp_path, job, hooks):
    server, answers = hooks
    with serving(lambda _: Response()) as elsewhere:
        answers.append(Response(status=307, headers=(("Location", elsewhere.url),)))
        with hook_site(engine, store, tmp_path, server) as site:
            site.subscribe("alice", "end", "webhook", f"{server.url}/x")
            site.write(ended(job, site))
            site.send(after=SETTLED)
            assert site.count("failed", "webhook") == 1
        assert elsewhere.requests == []


def test_webhook_that_answers_500_for_hours(engine, store, tmp_path, job, hooks):
    server, answers = hooks
    answers.append(Response(status=500))
    with hook_site(engine, store, tmp_path, server) as site:
        site.subscribe("alice", "end", "webhook", f"{server.url}/x")
        site.subscribe("bob", "end")
        site.write(ended(job, site), ended(job, site, "2", user="bob"))
        for _ in range(150):
            site.send(after=600)
        assert len(site.relay.mails) == 1  # others are told meanwhile
        assert 10 < len(server.requests) < 40
        assert site.count("dropped", "webhook") == 1


def test_webhook_that_hangs_is_given_a_deadline(engine, store, tmp_path, job, hooks, monkeypatch):
    monkeypatch.setattr(channels, "_SECONDS", 0.2)
    server, answers = hooks
    answers.append(Response(b"x" * 100, pause=0.1))
    with hook_site(engine, store, tmp_path, server) as site:
        site.subscribe("alice", "end", "webhook", f"{server.url}/x")
        site.write(ended(job, site))
        site.send(after=SETTLED)
        assert site.count("sent", "webhook") == 0


def test_webhook_that_the_site_allows_no_more(engine, store, tmp_path, job, hooks):
    server, _ = hooks
    with message_site(engine, store, tmp_path, webhook=("https://hooks.example.org",)) as site:
        site.subscribe("alice", "end", "webhook", f"{server.url}/x")
        site.write(ended(job, site))
        site.send(after=SETTLED)
        assert server.requests == []
        assert site.count("failed", "webhook") == 1


def test_ntfy(engine, store, tmp_path, job, hooks):
    server, answers = hooks
    answers.append(json_response({"id": "x"}))
    with message_site(engine, store, tmp_path, ntfy=server.url, default=()) as site:
        site.subscribe("alice", "end", "ntfy", "alice-jobs")
        site.write(ended(job, site, name="ü\r\nx"))
        site.send(after=SETTLED)
    document = json.loads(server.requests[0].body)
    assert document["topic"] == "alice-jobs"
    assert document["title"] == "[batchjob] Job 1 (ü  x) on c1: COMPLETED"
    assert document["click"] == "https://jobs.example.org/jobs/1?cluster=c1"
    assert "The report" in document["message"]


@pytest.fixture
def encrypted(tmp_path):
    """Options for a relay with TLS and a log-in, and a context for its side."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file, password = tmp_path / "ca.pem", tmp_path / "password"
    authority.cert_pem.write_to_path(str(ca_file))
    password.write_text("correct\n")
    password.chmod(0o600)
    given = {"smtp_ca_file": str(ca_file), "smtp_user": "batchjob",
             "smtp_password_file": str(password)}  # fmt: skip
    return given, context


def authenticate(server, session, envelope, mechanism, data):
    return AuthResult(success=data.password == b"correct", handled=False)


@pytest.mark.parametrize("how", ["tls", "starttls"])
def test_encryption_and_log_in(engine, store, tmp_path, job, encrypted, how):
    given, context = encrypted
    tls = {"tls": {"tls": context, "auth_require_tls": False},
           "starttls": {"tls_context": context, "auth_required": True}}  # fmt: skip
    relay = Relay(authenticator=authenticate, **tls[how])
    options = {"smtp": relay.address, "smtp_tls": how, **given}
    with message_site(engine, store, tmp_path, **options) as site:
        assert site.sender.check() == []
        site.write(ended(job, site))
        site.send(after=SETTLED)
    relay.stop()
    assert len(relay.mails) == 1


def test_wrong_password_certificate_or_encryption_is_named(engine, store, tmp_path, encrypted):
    given, context = encrypted
    relay = Relay(authenticator=authenticate, auth_required=True, tls_context=context)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    plain = {"smtp": relay.address, "smtp_tls": "starttls"}
    for options, expected in (
        ({**given, "smtp_password_file": str(wrong)}, "535"),
        ({**given, "smtp_ca_file": ""}, "certificate verify failed"),
        ({**given, "smtp_tls": "tls"}, "wrong version number"),
    ):
        with message_site(engine, store, tmp_path, **{**plain, **options}) as site:
            (problem,) = site.sender.check()
            assert problem.startswith("messages.smtp: ")
            assert expected in problem
    relay.stop()
