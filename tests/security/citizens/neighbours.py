"""Citizens whose failure would take their neighbours."""

import json

import sqlalchemy as sa

from batchjob.schedulers.accounting import SourceError
from batchjob_stats_db.database import schema
from batchjob_stats_db.timeseries.base import QueryFailed
from tests.security.citizens.citizen import citizen, own_job

NEIGHBOURS = "neighbours"


@citizen(NEIGHBOURS)
def job_that_cannot_be_measured(site, dice):
    job = own_job(site)
    site.write_json_line(site.json_record(job))
    error = dice.choice(
        [
            ZeroDivisionError("odd"),
            MemoryError(),
            QueryFailed("too many samples"),
            OverflowError("too large"),
            RecursionError(),
        ]
    )
    site.nodes.error_for = {job.jobid: error}


@citizen(NEIGHBOURS)
def record_with_text_that_no_database_stores(site, dice):
    text = dice.choice(["\ud800", "a\0b", "\udfff" * 1000, "x" * 300_000, "\ud83d"])
    names = dice.sample(["name", "partition", "account", "submit_line", "reservation"], 3)
    # Escaped, as a program writes it that checks nothing.
    site.write_json_line(json.dumps(site.json_record(own_job(site), **dict.fromkeys(names, text))))


@citizen(NEIGHBOURS)
def line_of_garbage_among_records(site, dice):
    garbage = bytes(dice.randrange(256) for _ in range(2000)).replace(b"\n", b"")
    with site.json_lines.open("ab") as file:
        file.write(garbage + b"\n")
    site.write_json_line(dice.choice(['{"jobid": "1"', "null", "[1]", '{"jobid": []}', "1e999"]))


@citizen(NEIGHBOURS)
def source_that_fails_in_a_way_nobody_foresaw(site, dice):
    error = dice.choice(
        [ZeroDivisionError("odd"), KeyError("x"), RecursionError(), OSError(5, "io")]
    )

    def fail(watermark, unfinished):
        raise error

    source = site.poller.cluster.sources[-1]
    source.read = fail
    site.undo.append(lambda: vars(source).pop("read"))


@citizen(NEIGHBOURS)
def source_whose_error_no_database_stores(site, dice):
    """Such as the name of a file that is not UTF-8."""
    error = SourceError(dice.choice(["b\udcff.jsonl: Is a directory", "a\0b", "\ud800" * 1000]))

    def fail(watermark, unfinished):
        raise error

    source = site.poller.cluster.sources[-1]
    source.read = fail
    site.undo.append(lambda: vars(source).pop("read"))
    site.poll()
    with site.engine.connect() as db:
        assert db.scalar(sa.select(schema.poll_state.c.error_time).where(
            schema.poll_state.c.source == source.name)) == site.now  # fmt: skip


@citizen(NEIGHBOURS)
def store_that_fails_in_a_way_nobody_foresaw(site, dice):
    """Pages show what is recorded."""
    error = dice.choice([KeyError("node"), ZeroDivisionError("odd"), TypeError(), QueryFailed("x")])
    running = own_job(site)
    record = site.json_record(running, state="RUNNING", end_time=None, elapsed_seconds=None)
    site.write_json_line(record)
    site.poll()
    site.nodes.error_for = {running.jobid: error}

    def fail():
        raise error

    site.now += 3600
    site.nodes.wait = fail
    try:
        for path in ("/clusters/c1", "/admin", f"/jobs/{running.jobid}", "/jobs?columns=cpu"):
            answer = site.get("root", path, Accept="text/html")
            assert answer.status_code in (200, 422), (path, answer.status_code)
    finally:
        site.nodes.wait = bool


@citizen(NEIGHBOURS)
def unreadable_file_among_the_logs(site, dice):
    path = site.directory / "pbs" / f"2025{dice.randrange(1, 13):02}{dice.randrange(1, 29):02}"
    if path.exists():
        return
    with path.open("wb") as file:
        file.write(bytes(dice.randrange(256) for _ in range(300)) + b"\n" + b";" * 3000 + b"\n")
