"""The digest of a week: whose jobs are in it, and what can be changed."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema
from tests.batchjob_stats_server.conftest import NOW

PATH = "/api/v1/digest"
UNTIL = NOW + 86400


@pytest.fixture
def services(services):
    """With a job of alice that was measured: it used a tenth of its CPUs."""
    with services.writer.begin() as db:
        row = db.execute(
            sa.select(schema.job.c.id, schema.job.c.end_time, schema.job.c.allocated_cpus).where(
                schema.job.c.cluster == "c1", schema.job.c.username == "alice",
                schema.job.c.end_time.is_not(None), schema.job.c.start_time.is_not(None),
            ).limit(1)
        ).one()  # fmt: skip
        db.execute(
            sa.insert(schema.job_usage).values(
                job_id=row.id, source="prometheus", measured_time=NOW, until_time=row.end_time + 1,
                samples=100, dropped_series=0, nodes=1, coverage=1.0, user_cpu_seconds=10.0,
                system_cpu_seconds=1.0, memory_peak_bytes=1 << 20,
            )
        )  # fmt: skip
        db.execute(
            sa.update(schema.job).where(schema.job.c.id == row.id).values(usage_due_time=None)
        )
    return services


def ask(client, **query):
    answer = client.get(PATH, params={"until": UNTIL, **query})
    assert answer.status_code == 200
    return answer


def test_own_week(proxy_client):
    found = ask(proxy_client("alice")).json()
    assert (found["user"], found["people"]) == ("alice", [])
    assert found["total"]["jobs_ended"] >= 1
    assert {job["user"] for job in found["jobs"]} == {"alice"}
    assert found["jobs"][0]["step"]


@pytest.mark.parametrize("form", ["text", "html"])
def test_for_people(proxy_client, form):
    page = ask(proxy_client("alice"), format=form).text
    for expected in ("The week of alice", "Unused", "Energy"):
        assert expected in page


@pytest.mark.parametrize(
    ("caller", "query", "ended"),
    [
        ("alice", {"user": "bob"}, False),
        ("vera", {"user": "bob"}, True),
        ("alice", {"account": "chem"}, False),
        ("vera", {"account": "chem"}, True),
    ],
)
def test_others_are_in_it_only_for_who_may_see_them(proxy_client, caller, query, ended):
    found = ask(proxy_client(caller), **query).json()
    assert (found["total"]["jobs_ended"] > 0) is ended
    assert bool(found["people"]) is (ended and "account" in query)


def test_account_shows_a_coordinator_its_people(proxy_client):
    found = ask(proxy_client("dave"), account="physics").json()
    assert {each["user"] for each in found["people"]} == {"alice", "carol"}
