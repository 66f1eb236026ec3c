"""Every released schema can be brought to the present one, with what is in it."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from batchjob_stats_db import schema
from batchjob_stats_db.engine import writer
from batchjob_stats_db.migrate import migrate, revisions


def test_the_last_revision_is_the_one_the_programs_compare():
    assert revisions()[-1] == schema.REVISION


def test_revisions_are_in_order():
    assert revisions() == sorted(revisions())


@pytest.mark.parametrize("released", revisions())
def test_upgrade_with_data(empty_url, released):
    """One row in every table of a released schema is there after the upgrade."""
    engine = writer(empty_url, create=True)
    migrate(engine, released)
    old = sa.MetaData()
    old.reflect(engine)
    tables = [table for table in old.sorted_tables if table.name != "alembic_version"]
    with engine.begin() as db:
        for table in tables:
            db.execute(table.insert().values(_row(table)))
    assert migrate(engine)[1] == schema.REVISION
    with engine.connect() as db:
        for table in tables:
            kept = db.execute(sa.select(schema.metadata.tables[table.name])).mappings().one()
            assert {name: kept[name] for name in _row(table)} == _row(table)
    engine.dispose()


def _row(table):
    return {
        column.name: "x" if isinstance(column.type, sa.String) else 1 for column in table.columns
    }


def test_migrated_and_declared_tables_are_the_same(engine):
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
