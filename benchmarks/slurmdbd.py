"""What a poll costs slurmdbd as its table of jobs grows, by the counters of its MariaDB.

    PYTHONPATH=. python benchmarks/slurmdbd.py [JOBS ...]

A Slurm of its own with real slurmdbd, MariaDB, sacct and squeue (as root; see tests/e2e/slurm.py).
Each size is a first poll of the last hour, and a poll a moment later.
"""

import sys
import tempfile
from pathlib import Path

from tests.e2e import slurm
from tests.e2e.test_slurmdbd_load import RUNNING, Cost, Slurmdbd
from tests.e2e.test_stats_db_slurm import Poll

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
AT_ONCE = 1_000_000
EVERY = 20  # seconds between the ends of jobs


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    with slurm.cluster(cgroup=1, nodes=1) as cluster:
        dbd = Slurmdbd(cluster)
        dbd.add(RUNNING, every=1, ended=False)
        total = 0
        for size in sizes:
            dbd.add(min(size - total, 10_000), every=EVERY)
            total += min(size - total, 10_000)
            while total < size:  # older jobs, whose steps are never queried
                number = min(size - total, AT_ONCE)
                dbd.add(number, every=EVERY, since=total * EVERY, steps=False)
                total += number
            with tempfile.TemporaryDirectory() as folder:
                poll = Poll(Path(folder), cluster)
                poll("migrate")
                costs: list[Cost] = []
                for _ in range(2):
                    with dbd.measured(costs):
                        poll("--poll.first", "1h", "--once")
                for cost in costs:
                    share = cost.rows_examined / max(1, cost.rows_sent)
                    print(f"{size} jobs: {cost}, {share:.1f} examined per row", flush=True)


if __name__ == "__main__":
    main()
