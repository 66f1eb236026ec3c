"""A poller with its sender, to be killed: `python message_process.py URL RELAY SERVER TOKEN JOBS`.

It writes a job of another user in each transaction, from where it was, and sends meanwhile.
"""

import sys
import threading
import time

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.outbox import waiting_counts
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.subscriptions import MessageEvent, Wish, write_offer
from batchjob_stats_db.poller.messages.causes import Causes
from batchjob_stats_db.poller.messages.options import MessageOptions
from batchjob_stats_db.poller.messages.sender import Sender
from batchjob_stats_db.poller.self_metrics import PollerMetrics


def ended_job(number: int) -> JobRecord:
    now = int(time.time())
    return JobRecord(
        "c1", str(number), now - 100, JobState.COMPLETED, "COMPLETED", "simulated",
        user=f"user{number}", start_time=now - 50, end_time=now - 1,
    )  # fmt: skip


def main() -> None:
    url, relay, server, token, number = sys.argv[1:]
    engine = writer_engine(parse_url(url))
    options = MessageOptions(
        server=server, token_file=token, smtp=relay, smtp_tls="none", gather=0.0,
        sender="batchjob@example.org", address="{user}@example.org",
        default=(Wish(MessageEvent.END),),
    )  # fmt: skip
    store = Store(engine, "c1", UsagePolicy(horizon_seconds=0))
    Causes(store, options)
    with engine.begin() as db:
        write_offer(db, "c1", options.offer(), int(time.time()) - 3600)
    sender = Sender(engine, ["c1"], options, PollerMetrics(), lease_seconds=1)
    written = threading.Event()

    def write() -> None:
        for each in range(int(store.watermark("simulated") or "0"), int(number)):
            store.write(Batch((ended_job(each),), (), str(each + 1), 0), "simulated")
        written.set()

    threading.Thread(target=write, daemon=True).start()
    while True:
        is_last = written.is_set()
        sender.send_due()
        with engine.begin() as db:
            if is_last and not waiting_counts(db, ["c1"]):
                break
        time.sleep(0.01)
    print("done", flush=True)


if __name__ == "__main__":
    main()
