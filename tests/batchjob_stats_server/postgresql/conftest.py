"""The same database on a PostgreSQL server, on which the tests imported here run."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database.engine import writer_engine
from tests.batchjob_stats_db.conftest import postgresql  # noqa: F401
from tests.batchjob_stats_server.conftest import fill_database


@pytest.fixture(scope="session")
def filled_postgresql(postgresql):  # noqa: F811
    """The URL of a database with the jobs; tests write tokens, sessions and log-ins alone."""
    base = sa.create_engine(
        postgresql.set(database="postgres"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.pool.NullPool,
    )
    with base.connect() as db:
        db.execute(sa.text("CREATE DATABASE served"))
    url = postgresql.set(database="served")
    fill_database(writer_engine(url))
    return url


@pytest.fixture
def database_url(filled_postgresql):
    """Its URL; what a test has written is taken out again."""
    yield filled_postgresql.render_as_string(hide_password=False)
    engine = writer_engine(filled_postgresql)
    with engine.begin() as db:
        db.execute(sa.text("TRUNCATE api_token, login, login_session RESTART IDENTITY"))
    engine.dispose()
