"""A database with the first tables, as the first revision of the schema created them."""

from pathlib import Path

from sqlalchemy.engine import URL, Engine

from batchjob_stats_db.database.engine import writer_engine

SCHEMAS = Path(__file__).parents[1] / "fixtures/schema"


def first_database(url: URL) -> Engine:
    """Create the tables of revision 0001 in an empty database."""
    engine = writer_engine(url, create=True)
    statements = (SCHEMAS / f"0001.{engine.dialect.name}.sql").read_text().split(";\n")
    with engine.begin() as db:
        for statement in filter(str.strip, statements):
            db.exec_driver_sql(statement)
        db.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        db.exec_driver_sql("INSERT INTO alembic_version VALUES ('0001')")
    return engine
