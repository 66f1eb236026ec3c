"""What is said where a batch script is shown, and who learns of a look at it."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema, scripts
from tests.batchjob_stats_server.pages.conftest import HTML, parsed, words

SCRIPT = "#!/bin/sh\nexport TOKEN=<1>\n"


@pytest.fixture
def services(services):
    """Each job has a script, of which all is kept but the last line's end."""
    with services.writer.begin() as db:
        ids = db.scalars(sa.select(schema.job.c.id)).all()
        scripts.store(db, ids, SCRIPT, len(SCRIPT) - 1)
    return services


@pytest.fixture
def noted(caplog):
    caplog.set_level("INFO", "batchjob.audit")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "batchjob.audit"]


def test_each_look_of_an_admin_is_noted(proxied, noted):
    (row,) = proxied("root").get("/api/v1/jobs/2/script").json()
    assert (row["script"], row["whole_bytes"]) == (SCRIPT.rstrip(), len(SCRIPT))
    assert proxied("root").get("/jobs/2/script", headers=HTML).status_code == 200
    assert noted() == ["root (admin) saw script of job 2 of bob"] * 2


def test_a_look_at_ones_own_is_not(proxied, noted):
    assert proxied("bob").get("/api/v1/jobs/2/script").json()
    assert proxied("bob").get("/jobs/2/script", headers=HTML).status_code == 200
    assert noted() == []


def test_the_page_of_a_job_has_the_script_for_its_user(proxied):
    page = words(parsed(proxied("bob").get("/jobs/2", headers=HTML)).find(".//main"))
    assert "export TOKEN=<1>" in page
    assert "more than the site keeps" in page


def test_an_admin_is_told_that_a_look_is_noted(proxied):
    page = words(parsed(proxied("root").get("/jobs/2", headers=HTML)).find(".//main"))
    assert "TOKEN" not in page
    assert "recorded in the audit log" in page


def test_others_are_not_told_that_there_is_one(proxied):
    page = words(parsed(proxied("vera").get("/jobs/2", headers=HTML)).find(".//main"))
    assert "Batch script" not in page
