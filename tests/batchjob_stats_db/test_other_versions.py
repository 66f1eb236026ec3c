"""The poller beside exporters and a database of other versions, as during an upgrade.

The released names are those under tests/golden. An exporter of another version is a recorded
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
from batchjob_stats_db.database.revision import database_name
from batchjob_stats_db.main import main as poller
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server.main import main as stats_server
from tests.batchjob_stats_db.tsdb import prometheus
from tests.helpers.measured import measure

RECORDED = Path(__file__).parents[1] / "golden/slurm-22.05-v2-r1-a.prom"
START, INTERVAL, SCRAPES = 1_775_300_000, 30, 20
UNTIL = START + INTERVAL * SCRAPES
CPU_SECONDS = "batchjob_job_cpu_seconds_total"


def recorded_samples():
    """The recorded samples of job 1 by the name of their metric."""
    found = {}
    for family in text_string_to_metric_families(RECORDED.read_text()):
        for sample in family.samples:
            if sample.name.startswith("batchjob_job_") and sample.labels.get("jobid") == "1":
                found.setdefault(sample.name, []).append(sample)
    return found


def scraped_lines(cluster, samples):
    """Lines of a database that scraped these samples throughout the job."""
    for sample in samples:
        labels = {"cluster": cluster, "instance": "node01:10910", **sample.labels}
        series = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for number in range(1, SCRAPES + 1):
            yield f"{sample.name}{{{series}}} {sample.value} {START + number * INTERVAL}"


def job_to_measure(cluster):
    span = JobWindow(cluster, "1", START, UNTIL, end=UNTIL)
    return JobToMeasure(1, cluster, "1", "2001", 2001, START, UNTIL, 1, 1, span)


@pytest.fixture(scope="module")
def usage_by_version():
    """The usage of the job with the current exporter, a newer one, and older ones named by the
    metric that they lack; each has a separate cluster."""
    recorded = recorded_samples()
    versions = {"now": [sample for samples in recorded.values() for sample in samples]}
    new_sample = recorded[CPU_SECONDS][0]._replace(name="batchjob_job_something_new_total")
    versions["newer"] = [*versions["now"], new_sample]
    for missing in recorded:
        versions[missing] = [each for each in versions["now"] if each.name != missing]
    with prometheus(
        line for name, samples in versions.items() for line in scraped_lines(name, samples)
    ) as url:
        store = Prometheus(Endpoint(url))
        return {name: measure(store, [job_to_measure(name)], INTERVAL)[0] for name in versions}


def test_unknown_metrics_of_a_newer_exporter_are_ignored(usage_by_version):
    assert usage_by_version["now"].values
    assert usage_by_version["newer"] == usage_by_version["now"]


# Without the kernel's peak the largest sample stands for it.
STAND_INS = {
    "batchjob_job_memory_peak_bytes": {"memory_peak_bytes", "memory_peak_node_bytes"},
    "batchjob_job_threads_peak": {"threads_peak"},
}


@pytest.mark.parametrize("missing", recorded_samples())
def test_only_values_missing_in_an_older_exporter_are_unknown(usage_by_version, missing):
    now, older = usage_by_version["now"], usage_by_version[missing]
    stand_ins = STAND_INS.get(missing, set())
    columns = {each.name for each in USAGE_COLUMNS if each.quantity.metric.name == missing}
    assert now.values.keys() - older.values.keys() == columns - stand_ins
    different = {name for name, value in older.values.items() if value != now.values[name]}
    assert different <= stand_ins
    if missing == CPU_SECONDS:  # by which the job's node time is counted
        assert (older.samples, older.caveats) == (0, "no samples, threads sampled")
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


def set_revision(engine, revision):
    with engine.begin() as db:
        db.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))


@pytest.fixture
def restore_revision(engine):
    """Other tests use the same PostgreSQL database."""
    yield
    set_revision(engine, schema.REVISION)


@pytest.mark.usefixtures("restore_revision", "restore_logging")
@pytest.mark.parametrize("revision", OTHER_SCHEMAS)
def test_database_of_another_version_is_refused_in_one_line(
    url, engine, revision, tmp_path, capsys
):
    set_revision(engine, revision)
    config = tmp_path / "batchjob.yml"
    config.write_text("clusters: [{name: c1, sources: {sacct: {sacct: /bin/false}}}]")
    db_option = f"--db.url={url.render_as_string(hide_password=False)}"
    for command, arguments in COMMANDS:
        config_option = [f"--config.file={config}"] if command is poller else []
        assert command([*config_option, db_option, *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert OTHER_SCHEMAS[revision] in line
        assert database_name(url) in line


@pytest.mark.usefixtures("restore_logging")
def test_database_of_another_program_is_refused_in_one_line(tmp_path, capsys):
    config, path = tmp_path / "batchjob.yml", tmp_path / "places.sqlite"
    config.write_text("clusters: [{name: c1, sources: {sacct: {sacct: /bin/false}}}]")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    other_commands = (["migrate"], ["--check"], ["backup", str(tmp_path / "copy.db")])
    for command, arguments in (*COMMANDS, *((poller, arguments) for arguments in other_commands)):
        config_option = [f"--config.file={config}"] if command is poller else []
        assert command([*config_option, f"--db.url=sqlite:///{path}", *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{path}: belongs to another program (tables bookmarks); expected a data" in line


@pytest.mark.usefixtures("restore_logging")
def test_empty_database_is_reported(tmp_path, capsys):
    path = tmp_path / "jobs.db"
    path.touch()
    for command in (poller, stats_server):
        arguments = ["check"] if command is poller else []
        assert command([f"--db.url=sqlite:///{path}", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        message = f"{path}: the database is empty; run `batchjob_stats_db migrate`"
        assert line.endswith(message)


ADD_NEWER = (
    "ALTER TABLE job ADD COLUMN something_new TEXT",
    "ALTER TABLE job_usage ADD COLUMN something_new_seconds FLOAT",
    "CREATE TABLE something_new (job_id BIGINT PRIMARY KEY)",
)
DROP_NEWER = (
    "ALTER TABLE job DROP COLUMN something_new",
    "ALTER TABLE job_usage DROP COLUMN something_new_seconds",
    "DROP TABLE something_new",
)


@pytest.fixture
def newer_schema(engine):
    """The database with tables and columns that this version does not know."""
    with engine.begin() as db:
        for statement in ADD_NEWER:
            db.execute(sa.text(statement))
    yield
    with engine.begin() as db:
        for statement in DROP_NEWER:
            db.execute(sa.text(statement))


@pytest.mark.usefixtures("newer_schema")
def test_poller_writes_to_a_newer_schema(store, job, engine):
    store.write(Batch((job("1"), job("2")), (), "", None), "sacct")
    with engine.connect() as db:
        found = db.execute(sa.text("SELECT jobid, something_new FROM job ORDER BY jobid")).all()
    assert found == [("1", None), ("2", None)]
