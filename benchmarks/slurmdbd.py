"""What a poll costs slurmdbd as its table of jobs grows, by the counters of its MariaDB.

    PYTHONPATH=. python benchmarks/slurmdbd.py [JOBS ...]

A Slurm of its own with real slurmdbd, MariaDB, sacct and squeue (as root; see tests/e2e/slurm.py).
Each size is a first poll of the last hour, and a poll a moment later.
"""

import sys
import tempfile
from pathlib import Path

from tests.e2e import slurm
from tests.e2e.test_slurmdbd_load import RUNNING_JOBS, PollCost, SlurmdbdDatabase
from tests.e2e.test_stats_db_slurm import StatsDbCommand

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
AT_ONCE = 1_000_000
EVERY = 20  # seconds between the ends of jobs


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
                for cost in costs:
                    share = cost.rows_examined / max(1, cost.rows_sent)
                    print(f"{size} jobs: {cost}, {share:.1f} examined per row", flush=True)


if __name__ == "__main__":
    main()
