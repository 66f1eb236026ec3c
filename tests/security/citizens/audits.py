"""Citizens who ask about others, or act for them: each leaves a line of the audit log."""

import logging
from contextlib import contextmanager

from tests.security.citizens.citizen import citizen
from tests.security.one_bad_citizen import CITIZEN, USERS

AUDIT = "audit"


@contextmanager
def audited(user: str, words: str):
    """Expect a line of the audit log that names the asker, and what was asked for."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("batchjob.audit")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert any(user in line and words in line for line in lines), lines


@citizen(AUDIT)
def viewer_who_asks_for_sums_of_one_person(site, dice):
    path, words = dice.choice(
        [
            ("usage?account=physics", "asked for '/api/v1/usage'"),
            ("usage?user=alice", "asked for '/api/v1/usage'"),
            ("stats/waste?by=account", "asked for"),
            ("stats/failures?by=account", "asked for"),
            ("usage?account=nobody", "asked for '/api/v1/usage'"),
        ]
    )
    with audited("vera", words):
        assert site.get("vera", f"/api/v1/{path}").status_code == 200


@citizen(AUDIT)
def viewer_who_reads_jobs_of_others(site, dice):
    job = dice.choice([each for each in site.jobs.values() if each.user in ("alice", "carol")])
    path = dice.choice(["/api/v1/jobs/{}", "/jobs/{}", "/api/v1/jobs/{}/report"])
    with audited("vera", job.user):
        answer = site.get("vera", path.format(job.jobid), Accept="text/html")
        assert answer.status_code == 200


@citizen(AUDIT)
def user_who_tries_what_is_forbidden(site, dice):
    body = {"label": "x", "user": "alice", "role": dice.choice(["user", "viewer", "admin"])}
    with audited(CITIZEN, "was refused"):
        answer = site.client.post("/api/v1/tokens", json=body, headers=site.bearer(CITIZEN))
        assert answer.status_code == 403


@citizen(AUDIT)
def admin_who_makes_a_token_for_another(site, dice):
    body = {"label": "x", "user": dice.choice(USERS), "lifetime_seconds": 3600}
    with audited("root", f"made a token for {body['user']}"):
        answer = site.client.post("/api/v1/tokens", json=body, headers=site.identity("root"))
        assert answer.status_code in (200, 201), answer.text


@citizen(AUDIT)
def admin_who_uses_the_token_of_another(site, dice):
    body = {"label": "x", "user": "bob", "lifetime_seconds": 3600}
    made = site.client.post("/api/v1/tokens", json=body, headers=site.identity("root")).json()
    with audited("root as bob", dice.choice(["saw jobs of bob", "used token"])):
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert site.client.get("/api/v1/jobs?limit=1", headers=headers).status_code == 200
