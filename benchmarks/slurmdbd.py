"""What a poll costs slurmdbd as its table of jobs grows, by the counters of its MariaDB.

    PYTHONPATH=. python benchmarks/slurmdbd.py [JOBS ...]

A Slurm of its own with real slurmdbd, MariaDB, sacct and squeue (as root; see tests/e2e/slurm.py).
Each size is a first poll of the last hour, a poll a moment later, and a poller that goes on.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e import slurm
from tests.e2e.test_slurmdbd_load import RUNNING_JOBS, PollCost, SlurmdbdDatabase
from tests.e2e.test_stats_db_slurm import REPOSITORY, StatsDbCommand
from tests.helpers.processes import free_ports

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
AT_ONCE = 1_000_000
EVERY = 20  # seconds between the ends of jobs
SECONDS = 90  # for which a poller goes on


def poll_for_a_while(
    cluster: slurm.Cluster, database: SlurmdbdDatabase, folder: str, costs: list[PollCost]
) -> float:
    """A poller that polls every 5 s, with 2 new jobs a second; CPU seconds, with its commands'."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    argv = [sys.executable, "-m", "batchjob_stats_db.main", "--config.file", "stats_db.yml"]
    argv += ["--poll.interval", "5s", "--web.listen-address", address]
    path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
    environ = {**cluster.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
    with database.record_cost(costs):
        poller = subprocess.Popen(cluster.inside(*argv), cwd=folder, env=environ)
        for _ in range(SECONDS // 10):
            time.sleep(10)
            database.add_jobs(20, end_interval=1)
        poller.terminate()
        _, _, usage = os.wait4(poller.pid, 0)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    with slurm.cluster(cgroup=1, nodes=1) as cluster:
        database = SlurmdbdDatabase(cluster)
        database.add_jobs(RUNNING_JOBS, end_interval=1, ended=False)
        total = 0
        for size in sizes:
            database.add_jobs(min(size - total, 10_000), end_interval=EVERY)
            total += min(size - total, 10_000)
            while total < size:  # older jobs, whose steps are never queried
                number = min(size - total, AT_ONCE)
                database.add_jobs(
                    number, end_interval=EVERY, newest_end_age=total * EVERY, with_steps=False
                )
                total += number
            with tempfile.TemporaryDirectory() as folder:
                stats_db = StatsDbCommand(Path(folder), cluster)
                stats_db("migrate")
                costs: list[PollCost] = []
                for _ in range(2):
                    with database.record_cost(costs):
                        stats_db("--poll.first", "1h", "--once")
                seconds = poll_for_a_while(cluster, database, folder, costs)
                print(f"{size} jobs: {seconds:.2f} s CPU in {SECONDS} s")
                for cost in costs:
                    share = cost.rows_examined / max(1, cost.rows_sent)
                    print(f"{size} jobs: {cost}, {share:.1f} examined per row", flush=True)


if __name__ == "__main__":
    main()
