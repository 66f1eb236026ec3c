"""Citizens whose text makes a parser raise an unexpected exception."""

import base64
import json
import os
import random
import uuid
from contextlib import suppress

from batchjob.schedulers.states import JobState
from batchjob_stats_db.timeseries import prometheus_client
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.auth import oidc
from tests.security.citizens.citizen import CITIZEN_UID, VICTIM_UID, citizen, own_job, write_run
from tests.security.one_bad_citizen import CITIZEN, Site

EXCEPTIONS = "exceptions"


def nested(dice: random.Random) -> str:
    opening = dice.choice(["[", '{"a":', '[{"a":'])
    return opening * dice.randrange(2_000, 50_000)


@citizen(EXCEPTIONS)
def record_nested_too_deeply(site, dice):
    site.write_json_line(nested(dice))
    site.write_json_line(
        json.dumps(site.json_record(own_job(site)))[:-1] + f', "x": {nested(dice)}'
    )


@citizen(EXCEPTIONS)
def run_nested_too_deeply(site, dice):
    path = site.data / "runs" / f"{uuid.uuid4()}.json"
    path.write_text(nested(dice))
    path.chmod(0o644)
    os.chown(path, CITIZEN_UID, -1)


def assert_runs_of_others_are_read(site: Site) -> None:
    run = str(uuid.uuid4())
    write_run(site, run, VICTIM_UID, VICTIM_UID)
    site.poll()
    with site.engine.connect() as db:
        assert site.find(db, run), "the run of another was not read"


@citizen(EXCEPTIONS)
def run_nested_as_deep_as_the_parser_follows(site, dice):
    """Deeper by a few calls than what is done with the value afterwards."""
    for depth in range(940 + dice.randrange(10), 1000):
        run = str(uuid.uuid4())
        write_run(site, run, CITIZEN_UID, CITIZEN_UID, name=[])
        path = site.data / "runs" / f"{run}.json"
        text = path.read_text().replace("[]", "[" * depth + "]" * depth)
        path.unlink()  # as in write_run
        path.write_text(text)
        path.chmod(0o644)
        os.chown(path, CITIZEN_UID, -1)
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def run_whose_process_has_an_impossible_number(site, dice):
    """In the record of an unfinished run, which is read in each cycle."""
    run, supervisor = str(uuid.uuid4()), {"pid": 1, "start_ticks": 1, "boot_id": "x"}
    unfinished = {"state": JobState.RUNNING, "end_time": None}
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, **unfinished, supervisor=supervisor)
    site.poll()
    supervisor["pid"] = dice.choice([float("inf"), float("nan"), 10**400, -1, "1", [1], True])
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, **unfinished, supervisor=supervisor)
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def run_with_an_endless_time_limit(site, dice):
    limit = dice.choice([float("inf"), float("nan"), -float("inf"), 1e300])
    run = str(uuid.uuid4())
    write_run(site, run, CITIZEN_UID, CITIZEN_UID, time_limit_seconds=limit)
    assert_runs_of_others_are_read(site)


@citizen(EXCEPTIONS)
def cookie_of_a_log_in_nested_too_deeply(site, dice):
    texts = [nested(dice), '["\\ud800", "", "", ""]', '{"a": 1, "a": 2}', "[1, 2]", "\0"]
    cookie = base64.urlsafe_b64encode(dice.choice(texts).encode()).decode()
    with suppress(oidc.OidcError):
        oidc.parse_pending_login(cookie)


@citizen(EXCEPTIONS)
def answer_of_the_store_nested_too_deeply(site, dice):
    body = dice.choice([nested(dice), '{"status": "success", "data": ' + nested(dice), "\ud800"])
    with suppress(TimeSeriesError):
        prometheus_client.results_of("http://tsdb", 200, body.encode("utf-8", "surrogatepass"))


@citizen(EXCEPTIONS)
def request_nested_too_deeply(site, dice):
    body = nested(dice)[:60_000]
    headers = {"Content-Type": "application/json", **site.bearer(CITIZEN)}
    status = site.client.post("/api/v1/tokens", content=body, headers=headers).status_code
    assert 400 <= status < 500
    cursor = base64.urlsafe_b64encode(body[:150].encode()).decode()
    assert 400 <= site.get(CITIZEN, f"/api/v1/jobs?cursor={cursor}").status_code < 500
