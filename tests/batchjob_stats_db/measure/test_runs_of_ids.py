"""The runs of a job's id, which decide whose samples those of a job are."""

import sqlalchemy as sa

from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.measure.pending import runs_by_jobid
from tests.batchjob_stats_server import example_site


def test_they_are_found_by_the_id_in_a_database_without_statistics(tmp_path):
    example_site.make(tmp_path / "jobs.db", 40)
    engine = reader_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"))
    asked = []
    sa.event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
    with engine.connect() as db:
        runs = runs_by_jobid(db, "alpha", ["40003", "40007", "no-such-job"])
        statement, parameters = asked[-1]
        plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    engine.dispose()
    assert runs.keys() == {"40003"}  # 40007 waits
    assert all("jobid=?" in step[3] for step in plan), plan
