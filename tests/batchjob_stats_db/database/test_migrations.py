"""Migrations create the tables that the programs expect."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from batchjob_stats_db.admin.migrate import bring_up_to_date, migrate, revisions
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.measure.rollup import roll_up
from tests.helpers.first_database import first_database


def test_last_revision_is_the_one_expected_by_the_programs():
    assert revisions()[-1] == schema.REVISION


def test_revisions_are_in_order():
    assert revisions() == sorted(revisions())


_RENAMED = {"doubt": "caveats"}


@pytest.mark.parametrize("released", revisions())
def test_upgrade_keeps_data_of_every_revision(empty_url, released):
    """One row in every table of a released schema is kept by the upgrade."""
    engine = first_database(empty_url)
    migrate(engine, released)
    old_schema = sa.MetaData()
    old_schema.reflect(engine)
    tables = [table for table in old_schema.sorted_tables if table.name != "alembic_version"]
    with engine.begin() as db:
        for table in tables:
            db.execute(table.insert().values(_row(table)))
    assert migrate(engine)[1] == schema.REVISION
    with engine.connect() as db:
        for table in tables:
            migrated_row = (
                db.execute(sa.select(schema.metadata.tables[table.name])).mappings().one()
            )
            kept = {name: migrated_row[_RENAMED.get(name, name)] for name in _row(table)}
            assert kept == _row(table)
    engine.dispose()


def test_totals_lower_than_those_of_the_steps_are_raised(empty_url, caplog):
    """CPU seconds and peak of an ended job, a right one and a running one; the day is due again."""
    engine = first_database(empty_url)
    tables = sa.MetaData()
    tables.reflect(engine)
    job, step = tables.tables["job"], tables.tables["job_step"]
    day = 86_400 * 20_000
    jobs = [
        {"id": 1, "end_time": day + 60, "cpu_seconds": 0.076, "peak_memory_bytes": 5 << 20},
        {"id": 2, "end_time": day + 60, "cpu_seconds": 1.912, "peak_memory_bytes": 126 << 20},
        {"id": 3, "end_time": None, "cpu_seconds": None, "peak_memory_bytes": None},
    ]
    steps = [("0", 0.143, 126 << 20), ("1", 1.692, 3 << 20), ("batch", 0.077, None)]
    with engine.begin() as db:
        for each in jobs:
            values = {"cluster": "c", "jobid": str(each["id"]), "submit_time": day, "run": 1}
            values |= {"source": "sacct", "start_time": day, "update_time": day,
                       "allocated_cpus": 1, **each}  # fmt: skip
            db.execute(job.insert().values(values))
            for name, seconds, memory in steps:
                values = {"job_id": each["id"], "step": name, "cpu_seconds": seconds}
                db.execute(step.insert().values(memory_bytes=memory, **values))
    migrate(engine)
    with engine.connect() as db:
        totals = db.execute(sa.select(job.c.cpu_seconds, job.c.peak_memory_bytes).order_by("id"))
        raised, right, running = totals.all()
        assert raised == pytest.approx((1.912, 126 << 20))
        assert (tuple(right), tuple(running)) == ((1.912, 126 << 20), (None, None))
        assert db.execute(sa.select(tables.tables["rollup_due"])).all() == [("c", day)]
    with engine.begin() as db:  # waste is what was allocated, less this
        roll_up(db, "c", day, day + 9 * 86_400)
        for table in (schema.USAGE.by_user, schema.USAGE.monthly_by_user):
            assert db.scalar(sa.select(sa.func.sum(table.c.cpu_seconds))) == pytest.approx(3.824)
    assert "1 jobs had less CPU time or memory than their steps" in caplog.text
    engine.dispose()


def test_cpu_time_of_zero_that_was_never_gathered_is_taken_out(empty_url, caplog):
    engine = first_database(empty_url)
    tables = sa.MetaData()
    tables.reflect(engine)
    job, step = tables.tables["job"], tables.tables["job_step"]
    found = [  # source, run time, peak memory, CPU seconds of a step, expected of the job
        ("sacct", 3600, None, 0, None),  # jobacct_gather/none
        ("sacct", 5, None, 0, None),
        ("slurm_rest", 3600, 4096, 0, None),  # lost: no process runs for an hour without any
        ("sacct", 5, 4096, 0, 0),
        ("sacct", 3600, 4096, 0.006, 0),  # less than sums are rounded by
        ("pbs_log", 3600, None, 0, 0),
    ]
    with engine.begin() as db:
        for number, (source, seconds, memory, used, _) in enumerate(found):
            times = {"submit_time": 1000, "start_time": 1000, "end_time": 1000 + seconds}
            identity = {"id": number, "cluster": "c", "jobid": str(number), "run": 1}
            values = {"source": source, "update_time": 1, "cpu_seconds": 0} | times | identity
            db.execute(job.insert().values(values | {"peak_memory_bytes": memory}))
            values = {"job_id": number, "step": "batch", "cpu_seconds": used}
            db.execute(step.insert().values(memory_bytes=memory, **values))
    migrate(engine)
    with engine.connect() as db:
        of_jobs = db.execute(sa.select(job.c.cpu_seconds).order_by(job.c.id)).scalars().all()
        of_steps = db.execute(sa.select(step.c.cpu_seconds).order_by(step.c.job_id)).scalars().all()
    assert of_jobs == [expected for *_, expected in found]
    assert of_steps == [None, None, None, 0, 0.006, 0]
    assert "3 jobs had 0 s of CPU time" in caplog.text
    engine.dispose()


def test_exit_codes_of_sacct_that_may_be_128_more_are_told_apart(empty_url):
    """24.11, whose record ids have 64 bits, prints 127 for 127 and 255, as 22.05 does."""
    engine = first_database(empty_url)
    tables = sa.MetaData()
    tables.reflect(engine)
    job, step = tables.tables["job"], tables.tables["job_step"]
    long_id = "6590604516928593920"
    found = [  # source, record id, state, stored code and signal, expected columns
        ("sacct", long_id, "FAILED", 127, 0, (None, 127)),
        ("sacct", long_id, "FAILED", 9, 0, (None, 9)),
        ("sacct", long_id, "FAILED", 0, 0, (None, 0)),
        ("sacct", "77", "FAILED", 127, 0, (None, 127)),
        ("sacct", long_id, "COMPLETED", 0, 0, (0, None)),
        ("sacct", long_id, "FAILED", 255, 0, (255, None)),
        ("sacct", long_id, "CANCELLED", 1, 15, (1, None)),
        ("slurm_rest", "", "FAILED", 127, 0, (127, None)),
    ]
    with engine.begin() as db:
        for number, (source, record_id, state, code, signal, _) in enumerate(found):
            values = {"state": state, "exit_code": code, "exit_signal": signal}
            identity = {"id": number, "cluster": "c", "jobid": str(number), "submit_time": 1}
            identity |= {"run": 1, "source": source, "record_id": record_id, "update_time": 1}
            db.execute(job.insert().values(identity | values))
            db.execute(step.insert().values({"job_id": number, "step": "batch"} | values))
    migrate(engine)
    expected = [columns for *_, columns in found]
    with engine.connect() as db:
        for table, key in ((schema.job, "id"), (schema.job_step, "job_id")):
            columns = sa.select(table.c.exit_code, table.c.exit_code_or_128_more)
            rows = db.execute(columns.order_by(table.c[key])).all()
            assert list(map(tuple, rows)) == expected
    engine.dispose()


def test_exit_codes_since_sacct_printed_one_above_128_stay(empty_url):
    """25.05 prints none of these, and no release after it prints 128 less."""
    engine = first_database(empty_url)
    tables = sa.MetaData()
    tables.reflect(engine)
    found = [  # cluster, stored code, end, time of storing, expected columns
        ("a", 127, 1000, 1005, (None, 127)),
        ("a", 255, 2000, 2005, (255, None)),
        ("a", 3, 2004, 2010, (None, 3)),
        ("a", 127, 3000, 3005, (127, None)),
        ("a", 0, 3001, 3005, (0, None)),
        ("b", 127, 3000, 3005, (None, 127)),
    ]
    with engine.begin() as db:
        for number, (cluster, code, end, stored, _) in enumerate(found):
            key = {"cluster": cluster, "jobid": str(number), "submit_time": 1, "run": 1}
            values = {"state": "FAILED", "exit_code": code, "exit_signal": 0}
            row = key | values | {"id": number, "end_time": end, "update_time": stored}
            db.execute(tables.tables["job"].insert().values(row | {"source": "sacct"}))
            step = {"job_id": number, "step": "batch"} | values
            db.execute(tables.tables["job_step"].insert().values(step))
    migrate(engine)
    with engine.connect() as db:
        for table, key in ((schema.job, "id"), (schema.job_step, "job_id")):
            columns = sa.select(table.c.exit_code, table.c.exit_code_or_128_more)
            rows = db.execute(columns.order_by(table.c[key])).all()
            assert list(map(tuple, rows)) == [columns for *_, columns in found]
    engine.dispose()


def _row(table):
    return {
        column.name: "x" if isinstance(column.type, sa.String) else 1 for column in table.columns
    }


def test_migrated_tables_match_the_declared_ones(empty_url):
    engine = first_database(empty_url)
    migrate(engine)
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_migrated_indexes_match_the_declared_ones(empty_url):
    """With their conditions and directions, which `compare_metadata` ignores."""
    engine = first_database(empty_url)
    for index in schema.job.indexes:  # as in a process that has created no tables
        index.dialect_options[engine.dialect.name]["where"] = None
    migrate(engine)
    with engine.connect() as db:
        migrated = _indexes(db)
        schema.metadata.drop_all(db)
        schema.metadata.create_all(db)
        assert _indexes(db) == migrated
        db.rollback()
    engine.dispose()


def _indexes(db):
    """The CREATE INDEX statements."""
    query = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
    }[db.dialect.name]
    return sorted(db.scalars(sa.text(query)))


def test_copy_of_a_killed_migration_is_removed(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    url = parse_url(f"sqlite:///{path}")
    bring_up_to_date(url)
    monkeypatch.setattr(schema, "REVISION", "9999")  # of a future version
    old_copy = path.with_name(f"{path.name}.before-{revisions()[-1]}-20260101T000000Z")
    old_copy.write_bytes(b"of a migration that did not end")
    _, _, copied = bring_up_to_date(url)
    assert list(tmp_path.glob("*.before-*")) == [copied]


def test_size_of_the_write_ahead_log_is_limited(tmp_path):
    url = parse_url(f"sqlite:///{tmp_path}/jobs.db")
    bring_up_to_date(url)
    engine = writer_engine(url)
    with engine.connect() as db:
        assert db.exec_driver_sql("PRAGMA journal_size_limit").scalar() == 64 << 20
    engine.dispose()
