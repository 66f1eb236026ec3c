"""Migrations create the tables that the programs expect."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from batchjob_stats_db.admin.migrate import bring_up_to_date, migrate, revisions
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import DatabaseError, parse_url, writer_engine


def test_last_revision_is_the_one_expected_by_the_programs():
    assert revisions()[-1] == schema.REVISION


def test_revisions_are_in_order():
    assert revisions() == sorted(revisions())


def test_created_tables_are_not_changed_by_a_second_migration(empty_url):
    engine = writer_engine(empty_url, create=True)
    assert migrate(engine) == ("", schema.REVISION)
    assert migrate(engine) == (schema.REVISION, schema.REVISION)
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_database_from_before_the_first_release_is_refused_as_it_is(empty_url):
    engine = writer_engine(empty_url, create=True)
    migrate(engine)
    with engine.begin() as db:
        db.execute(sa.text("UPDATE alembic_version SET version_num = '0009'"))
    with pytest.raises(DatabaseError, match="schema 0009 from before the first release; export"):
        migrate(engine)
    engine.dispose()


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
