"""Where a batch script is shown, what is said about it, and which views are audited."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema, scripts
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page

SCRIPT = "#!/bin/sh\nexport TOKEN=<1>\n"


@pytest.fixture
def services(services):
    """Each job has a script, which is stored without its last character."""
    with services.writer.begin() as db:
        ids = db.scalars(sa.select(schema.job.c.id)).all()
        scripts.store(db, ids, SCRIPT, len(SCRIPT) - 1)
    return services


@pytest.fixture
def audit_messages(caplog):
    caplog.set_level("INFO", "batchjob.audit")
    return lambda: [
        line
        for record in caplog.records
        if record.name == "batchjob.audit" and "asked for" not in (line := record.getMessage())
    ]


def test_script_view_by_admin_is_audited(proxy_client, audit_messages):
    (row,) = proxy_client("root").get("/api/v1/jobs/2/script").json()
    assert (row["script"], row["whole_bytes"]) == (SCRIPT.rstrip(), len(SCRIPT))
    assert proxy_client("root").get("/jobs/2/script", headers=HTML).status_code == 200
    assert audit_messages() == ["root (admin) saw script of job 2 of bob"] * 2


def test_view_of_own_script_is_not_audited(proxy_client, audit_messages):
    assert proxy_client("bob").get("/api/v1/jobs/2/script").json()
    assert proxy_client("bob").get("/jobs/2/script", headers=HTML).status_code == 200
    assert audit_messages() == []


def test_job_page_shows_script_to_its_user(proxy_client):
    text = element_text(
        parse_page(proxy_client("bob").get("/jobs/2", headers=HTML)).find(".//main")
    )
    assert "export TOKEN=<1>" in text
    assert "more than the site keeps" in text


def test_job_page_tells_admin_that_views_are_audited(proxy_client):
    text = element_text(
        parse_page(proxy_client("root").get("/jobs/2", headers=HTML)).find(".//main")
    )
    assert "TOKEN" not in text
    assert "recorded in the audit log" in text


def test_job_page_does_not_mention_script_to_viewer(proxy_client):
    text = element_text(
        parse_page(proxy_client("vera").get("/jobs/2", headers=HTML)).find(".//main")
    )
    assert "Batch script" not in text
