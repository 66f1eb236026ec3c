"""A month of a busy centre, through the poller into a database, compared with a model apart.

    PYTHONPATH=. python benchmarks/month.py [JOBS [OTHERS [SEED [KIND ...]]]]

JOBS through sacct, OTHERS through each other kind of source (or the kinds named alone); slurmdbd,
slurmctld, their link, network, directories, TSDB and poller are down at random, and the clock is
set forward, back and right again. tests/batchjob_stats_db/poller/test_month.py runs a small one.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.months.logs import MAKERS, log_month
from benchmarks.months.queues import HISTORY, queue_month
from benchmarks.months.runs import runs_month
from benchmarks.months.site import Differences
from benchmarks.months.slurm import slurm_month

Month = Callable[..., Differences]
"""Of a folder, a kind, a number of jobs and a seed; `days` and `step` (seconds) may be given."""

KINDS: dict[str, Month] = {
    "sacct": slurm_month,
    "slurm_rest": slurm_month,
    **dict.fromkeys(HISTORY, queue_month),
    **dict.fromkeys(MAKERS, log_month),
    "runs": runs_month,
}


def main(total: int = 1_000_000, others: int = 100_000, seed: int = 1, *kinds: str) -> None:
    print(f"seed {seed}, {datetime.now(UTC):%Y-%m-%d}")
    for kind in kinds or KINDS:
        begun = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            number = total if kind == "sacct" else others
            found = KINDS[kind](Path(folder), kind, number, seed)
        print(f"{kind}: {found}, {time.process_time() - begun:.0f} s CPU", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
