"""A simulated scheduler: job n is submitted, starts and ends at fixed times.

Run as a program it is a poller to be killed: `python simulated_source.py URL NUMBER`.
"""

import sys
import threading
from collections.abc import Iterator, Mapping

from batchjob.schedulers.accounting import Batch, UnfinishedJob
from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.engine import parse_url, writer_engine, writer_lock
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics

BEGIN = 1_775_001_600  # a midnight, UTC
SUBMIT_INTERVAL, WAIT_SECONDS, RUN_SECONDS = 13, 30, 400
BATCH_SIZE = 300
OVERLAP = 100


def record(number: int, now: int) -> JobRecord:
    """Job `number` as the scheduler knows it at a time."""
    submit = BEGIN + number * SUBMIT_INTERVAL
    start = submit + WAIT_SECONDS if now >= submit + WAIT_SECONDS else None
    end = (
        submit + WAIT_SECONDS + RUN_SECONDS if now >= submit + WAIT_SECONDS + RUN_SECONDS else None
    )
    state = JobState.COMPLETED if end else JobState.RUNNING if start else JobState.PENDING
    nodes = (NodeShare(f"n{number % 50:03}", 4), NodeShare(f"n{number % 50 + 50:03}", 4))
    return JobRecord(
        "c1", str(number), submit, state, state.value, "simulated",
        user=f"user{number % 7}", account=f"account{number % 3}", start_time=start, end_time=end,
        allocated_cpus=8 if start else None, nodes=nodes if start else (),
    )  # fmt: skip


class SimulatedSource:
    """A source of `number` jobs; each reading sees `step` more of them."""

    name = "simulated"
    cluster = "c1"

    def __init__(self, number: int, step: int = 1000) -> None:
        self.number = number
        self.step = step
        self.calls = 0

    def check(self) -> tuple[str, ...]:
        return ()

    def watermark_at(self, since: int) -> str:
        return "0"

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        self.calls += 1
        begin = max(0, int(watermark) - OVERLAP)
        last = min(int(watermark) + self.step, self.number)
        now = (
            BEGIN + last * SUBMIT_INTERVAL
            if last < self.number
            else BEGIN + self.number * SUBMIT_INTERVAL + 10_000
        )
        unfinished_jobs = [record(int(jobid), now) for jobid in unfinished if int(jobid) < begin]
        yield Batch(tuple(unfinished_jobs), (), watermark, now)
        for low in range(begin, last, BATCH_SIZE):
            high = min(low + BATCH_SIZE, last)
            jobs = tuple(record(number, now) for number in range(low, high))
            yield Batch(jobs, (), str(max(high, int(watermark))), now)

    @property
    def now(self) -> int:
        return BEGIN + self.number * SUBMIT_INTERVAL + 10_000


def build_poller(engine, source, *, history=None, clock=None, **tsdb) -> Poller:
    """A poller of one simulated cluster; without a clock, time stands after the last job."""
    cluster = ClusterSettings("c1", (source,), (), TsdbOptions(**tsdb))

    def end_time() -> float:
        return float(source.now)

    clock = clock or end_time
    store = Store(engine, "c1", cluster.tsdb.policy(), clock)
    options = PollOptions(interval=0.0, rollup_interval=0.0)
    return Poller(cluster, store, history, options, RetentionOptions(), PollerMetrics(), clock)


def main() -> None:
    url = parse_url(sys.argv[1])
    source = SimulatedSource(int(sys.argv[2]))
    with writer_lock(url):
        poller = build_poller(writer_engine(url), source)
        store = poller.store
        while not is_finished(store, source):
            poller.run_cycle(threading.Event())
    print("done", flush=True)


def is_finished(store: Store, source: SimulatedSource) -> bool:
    return store.watermark("simulated") == str(source.number) and not store.unfinished()


if __name__ == "__main__":
    main()
