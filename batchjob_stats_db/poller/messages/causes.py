"""What people are told of: what a poll brought, and what running jobs do."""

from sqlalchemy.engine import Connection

from batchjob_stats_db.database import outbox, subscriptions
from batchjob_stats_db.database.job_writer import JobWriter
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.messages.options import MessageOptions


class Causes:
    """Writes one cluster's messages into the outbox; for the thread of its poller."""

    def __init__(self, store: Store, options: MessageOptions) -> None:
        self._store = store
        self._options = options

    def tell_of_batch(self, db: Connection, jobs: JobWriter) -> None:
        """Tell of jobs that began or ended, in the transaction that writes them."""
        if not jobs.begun_or_ended:
            return
        now = int(self._store.clock())
        since = int(subscriptions.read_site(db).get("since", now))
        oldest = self._options.pace().oldest_seconds
        told = outbox.told_of_records(jobs.begun_or_ended, since, oldest, now)
        outbox.write(db, self._options.checked_offer(), self._store.cluster, told, now)

    def look(self) -> bool:
        """Delete what was done long ago."""
        now = int(self._store.clock())
        with self._store.transaction() as db:
            outbox.delete_old(db, self._store.cluster, now)
        return True
