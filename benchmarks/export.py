"""How long a table of jobs takes as CSV: time, peak memory and size of `batchjob_stats_db export`.

    python -m benchmarks.export [JOBS]

The jobs, 100,000 unless said otherwise, are copies of one job with usage in an SQLite file.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine

_JOB = """
INSERT INTO job (cluster, jobid, submit_time, run, username, account, partition, name, state,
    state_word, source, start_time, end_time, elapsed_seconds, allocated_cpus,
    allocated_memory_bytes, allocated_nodes, node_list, update_time)
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :jobs)
SELECT 'alpha', n, 1770000000 + n, 0, 'user' || (n % 500), 'account' || (n % 40), 'cpu', 'train',
    'COMPLETED', 'COMPLETED', 'sacct', 1770000060 + n, 1770003660 + n, 3600, 4, 8589934592, 1,
    'n' || (n % 1000), 1770003700 FROM number
"""
_USAGE = """
INSERT INTO job_usage (job_id, source, measured_time, until_time, samples, dropped_series, nodes,
    coverage, user_cpu_seconds, system_cpu_seconds, memory_peak_bytes)
SELECT id, 'prometheus', end_time, end_time, 120, 0, 1, 1.0, 12000.5, 300.25, 5368709120 FROM job
"""


def main(jobs: int) -> None:
    """Make the database, export it, and print what that took."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        engine = writer_engine(parse_url(url), create=True)
        migrate(engine)
        with engine.begin() as db:
            db.execute(sa.text(_JOB), {"jobs": jobs})
            db.execute(sa.text(_USAGE))
        engine.dispose()
        config = Path(folder, "stats_db.yml")
        config.write_text(f'db: {{url: "{url}"}}\n')
        argv = [sys.executable, "-m", "batchjob_stats_db.main", f"--config.file={config}"]
        made = Path(folder, "jobs.csv")
        began = time.monotonic()
        with (
            made.open("wb") as output,
            subprocess.Popen([*argv, "export", "--format=csv"], stdout=output) as exporting,
        ):
            _, status, used = os.wait4(exporting.pid, 0)
            exporting.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if exporting.returncode:
            sys.exit(f"export ended with status {exporting.returncode}")
        size = made.stat().st_size
        print(
            f"{jobs} jobs: {seconds:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of CPU), "
            f"{used.ru_maxrss / 1024:.0f} MiB at most, {size / 1e6:.0f} MB of CSV"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
