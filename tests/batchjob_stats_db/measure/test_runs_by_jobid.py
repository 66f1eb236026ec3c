"""The runs of a job id, which decide to which run a sample belongs."""

import sqlalchemy as sa

from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.measure.pending import runs_by_jobid
from tests.batchjob_stats_server import example_site


def test_runs_by_jobid_uses_the_index_without_statistics(tmp_path):
    example_site.make(tmp_path / "jobs.db", 40)
    engine = reader_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"))
    statements = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4])
    )
    with engine.connect() as db:
        runs = runs_by_jobid(db, "alpha", ["40003", "40007", "no-such-job"])
        statement, parameters = statements[-1]
        plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    engine.dispose()
    assert runs.keys() == {"40003"}  # 40007 is pending
    assert all("jobid=?" in step[3] for step in plan), plan
