"""The poller beside exporters and a database of other versions, as during an upgrade.

What is released are the names under tests/golden. An exporter of another version is a recorded
exposition without a metric, or with one more; a database of another version has another revision.
"""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from batchjob.quantities.usage import USAGE_COLUMNS
from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.unusable import database_name
from batchjob_stats_db.main import main as poller
from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server.main import main as stats_server
from tests.batchjob_stats_db.tsdb import prometheus

RECORDED = Path(__file__).parents[1] / "golden/slurm-22.05-v2-r1-a.prom"
BEGAN, INTERVAL, SCRAPES = 1_775_300_000, 30, 20
UNTIL = BEGAN + INTERVAL * SCRAPES
CPU_SECONDS = "batchjob_job_cpu_seconds_total"


def families():
    """What the recording has of job 1: samples by the name of their metric."""
    found = {}
    for family in text_string_to_metric_families(RECORDED.read_text()):
        for sample in family.samples:
            if sample.name.startswith("batchjob_job_") and sample.labels.get("jobid") == "1":
                found.setdefault(sample.name, []).append(sample)
    return found


def scraped(cluster, samples):
    """Lines of a database that scraped these samples all through the job."""
    for sample in samples:
        labels = {"cluster": cluster, "instance": "node01:10910", **sample.labels}
        series = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for number in range(1, SCRAPES + 1):
            yield f"{sample.name}{{{series}}} {sample.value} {BEGAN + number * INTERVAL}"


def of_job(cluster):
    span = JobWindow(cluster, "1", BEGAN, UNTIL, end=UNTIL)
    return JobToMeasure(1, cluster, "1", "2001", 2001, BEGAN, UNTIL, 1, 1, span)


@pytest.fixture(scope="module")
def measured():
    """What the poller makes of the job, on exporters as they are now, a newer one, and older ones
    by the metric that they lack; each has a cluster of its own."""
    now = families()
    versions = {"now": [sample for of in now.values() for sample in of]}
    some = now[CPU_SECONDS][0]._replace(name="batchjob_job_something_new_total")
    versions["newer"] = [*versions["now"], some]
    for gone in now:
        versions[gone] = [each for each in versions["now"] if each.name != gone]
    with prometheus(
        line for name, samples in versions.items() for line in scraped(name, samples)
    ) as url:
        store = Prometheus(Endpoint(url))
        return {name: measure(store, [of_job(name)], INTERVAL)[0] for name in versions}


def test_metrics_of_a_newer_exporter_are_passed_over(measured):
    assert measured["now"].values
    assert measured["newer"] == measured["now"]


# Without the kernel's peak the largest sample stands for it.
STAND_INS = {"batchjob_job_memory_peak_bytes": {"memory_peak_bytes", "memory_peak_node_bytes"}}


@pytest.mark.parametrize("gone", families())
def test_what_an_older_exporter_does_not_tell_is_unknown_and_all_else_is_measured(measured, gone):
    now, older = measured["now"], measured[gone]
    stand_ins = STAND_INS.get(gone, set())
    columns = {each.name for each in USAGE_COLUMNS if each.quantity.metric.name == gone}
    assert now.values.keys() - older.values.keys() == columns - stand_ins
    different = {name for name, value in older.values.items() if value != now.values[name]}
    assert different <= stand_ins
    if gone == CPU_SECONDS:  # by which the job's node time is counted
        assert (older.samples, older.doubt) == (0, "no samples")
    else:
        assert (older.samples, older.nodes, older.coverage) == (
            now.samples,
            now.nodes,
            now.coverage,
        )


OTHER_SCHEMAS = {
    "0000": f"has schema 0000, expected {schema.REVISION}; run `batchjob_stats_db migrate`",
    "9999": f"has schema 9999 of a newer version; this version supports {schema.REVISION}; upgrade",
}
COMMANDS = (
    (poller, ["--once"]),
    (poller, ["check"]),
    (poller, ["export"]),
    (stats_server, []),
    (stats_server, ["token", "root", "--role=admin"]),
)


def migrated_to(engine, revision):
    with engine.begin() as db:
        db.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))


@pytest.fixture
def back_again(engine):
    """Other tests have the same PostgreSQL."""
    yield
    migrated_to(engine, schema.REVISION)


@pytest.mark.usefixtures("back_again", "logging_as_it_was")
@pytest.mark.parametrize("revision", OTHER_SCHEMAS)
def test_a_database_of_another_version_is_refused_in_one_line(
    url, engine, revision, tmp_path, capsys
):
    migrated_to(engine, revision)
    config = tmp_path / "batchjob.yml"
    config.write_text("clusters: [{name: c1, sources: {sacct: {sacct: /bin/false}}}]")
    at = f"--db.url={url.render_as_string(hide_password=False)}"
    for command, arguments in COMMANDS:
        given = [f"--config.file={config}"] if command is poller else []
        assert command([*given, at, *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert OTHER_SCHEMAS[revision] in line
        assert database_name(url) in line


@pytest.mark.usefixtures("logging_as_it_was")
def test_a_file_that_another_program_made_is_refused_in_one_line(tmp_path, capsys):
    config, path = tmp_path / "batchjob.yml", tmp_path / "places.sqlite"
    config.write_text("clusters: [{name: c1, sources: {sacct: {sacct: /bin/false}}}]")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    more = (["migrate"], ["--check"], ["backup", str(tmp_path / "copy.db")])
    for command, arguments in (*COMMANDS, *((poller, arguments) for arguments in more)):
        given = [f"--config.file={config}"] if command is poller else []
        assert command([*given, f"--db.url=sqlite:///{path}", *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{path}: belongs to another program (tables bookmarks); expected a data" in line


@pytest.mark.usefixtures("logging_as_it_was")
def test_an_empty_database_is_named(tmp_path, capsys):
    path = tmp_path / "jobs.db"
    path.touch()
    for command in (poller, stats_server):
        arguments = ["check"] if command is poller else []
        assert command([f"--db.url=sqlite:///{path}", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        told = f"{path}: the database is empty; run `batchjob_stats_db migrate`"
        assert line.endswith(told)


NEWER = (
    "ALTER TABLE job ADD COLUMN something_new TEXT",
    "ALTER TABLE job_usage ADD COLUMN something_new_seconds FLOAT",
    "CREATE TABLE something_new (job_id BIGINT PRIMARY KEY)",
)
BACK = (
    "ALTER TABLE job DROP COLUMN something_new",
    "ALTER TABLE job_usage DROP COLUMN something_new_seconds",
    "DROP TABLE something_new",
)


@pytest.fixture
def newer(engine):
    """The database with tables and columns that this version does not know."""
    with engine.begin() as db:
        for statement in NEWER:
            db.execute(sa.text(statement))
    yield
    with engine.begin() as db:
        for statement in BACK:
            db.execute(sa.text(statement))


@pytest.mark.usefixtures("newer")
def test_a_poller_that_runs_while_columns_come_writes_on(store, job, engine):
    store.write(Batch((job("1"), job("2")), (), "", None), "sacct")
    with engine.connect() as db:
        found = db.execute(sa.text("SELECT jobid, something_new FROM job ORDER BY jobid")).all()
    assert found == [("1", None), ("2", None)]
