"""Every released schema can be brought to the present one, with what is in it."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from batchjob_stats_db import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.engine import writer
from batchjob_stats_db.migrate import migrate, revisions
from batchjob_stats_db.rollup import due_days, roll_up
from batchjob_stats_db.sources.source import Batch

REPLACED = {
    f"monthly_{whose}_{what}" for whose in ("account", "user") for what in ("usage", "emissions")
}
"""Tables whose sums are in others now."""


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
    assert {table.name for table in tables} - set(schema.metadata.tables) <= REPLACED
    with engine.connect() as db:
        for table in tables:
            if table.name in REPLACED:
                continue
            kept = db.execute(sa.select(schema.metadata.tables[table.name])).mappings().one()
            assert {name: kept[name] for name in _row(table)} == _row(table)
    engine.dispose()


def test_upgrade_fills_what_is_new_from_what_was_there(engine, store, job, empty_url, rows):
    """As if it had been made with the rows themselves."""
    begin = 1_769_900_000  # an hour before a month ends
    runs = [
        job(
            str(n),
            user=f"user{n % 5}",
            account=f"account{n % 3}",
            partition=f"p{n % 2}",
            submit_time=begin + n * 9000 - n * n,
            start_time=begin + n * 9000,
            end_time=begin + n * 9700,
        )
        for n in range(40)
    ]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    grams = [{"job_id": row["id"], "provider": "rte", "grams": 5.0} for row in rows(schema.job)]
    with engine.begin() as db:
        db.execute(sa.insert(schema.job_emissions), grams)
        for day in due_days(db, "c1", 1000):
            roll_up(db, "c1", day, begin + 90 * DAY)
    upgraded = writer(empty_url, create=True)
    migrate(upgraded, "0001")
    old = sa.MetaData()
    old.reflect(upgraded)
    with upgraded.begin() as db:
        for table in old.sorted_tables:
            if table.name in schema.metadata.tables and (
                kept := rows(schema.metadata.tables[table.name])
            ):
                db.execute(table.insert(), kept)
    migrate(upgraded)
    with upgraded.connect() as db:
        for table in schema.metadata.sorted_tables:
            query = sa.select(table).order_by(*table.primary_key.columns)
            made = [dict(row) for row in db.execute(query).mappings()]
            assert made == [pytest.approx(row) for row in rows(table)], table.name
    assert rows(schema.daily_wait)
    assert rows(schema.EMISSIONS.user_spans)
    upgraded.dispose()


def _row(table):
    return {
        column.name: "x" if isinstance(column.type, sa.String) else 1 for column in table.columns
    }


def test_migrated_and_declared_tables_are_the_same(engine):
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
