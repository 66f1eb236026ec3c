"""Sends what is in the outbox, in a thread of its own: a slow relay keeps no poll waiting.

Nothing is lost by a kill: a message stays in the outbox until its place has accepted it and that is
noted. Only if the process dies in between, or the connection does, is a message sent again, with
the same Message-ID or `id`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from batchjob.runtime.log import LogOnce
from batchjob_stats_db.database import outbox, subscriptions
from batchjob_stats_db.database.outbox import MessageBatch
from batchjob_stats_db.poller.messages.channels import Channels, Outcome
from batchjob_stats_db.poller.messages.compose import NoReportError, compose, server_problem
from batchjob_stats_db.poller.messages.options import MessageOptions
from batchjob_stats_db.poller.options import read_secret_option
from batchjob_stats_db.poller.self_metrics import PollerMetrics

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_LEASE_SECONDS = 300  # longer than one message can take
_SPARED_SECONDS = 60.0  # for which a place that takes nothing is left alone
_PATIENCE_SECONDS = 1800  # for which a message waits for a report
_DATABASE_RETRY_SECONDS = 2.0
_ADDRESS_SECONDS = 3600.0


class Sender:
    """Sends the messages of some clusters."""

    def __init__(
        self,
        engine: Engine,
        clusters: Sequence[str],
        options: MessageOptions,
        metrics: PollerMetrics,
        clock: Callable[[], float] = time.time,
        lease_seconds: int = _LEASE_SECONDS,
    ) -> None:
        """Raises SettingsError if a secret cannot be read."""
        offer = options.offer()
        assert offer is not None  # otherwise there is nothing to send
        self._offer = offer
        self._engine = engine
        self._clusters = clusters
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._channels = Channels(options)
        self._token = read_secret_option("messages.token-file", options.token_file)
        self._spared: dict[str, float] = {}  # places, until when by the monotonic clock
        self._addresses_until = 0.0
        self._log_once = LogOnce(log)

    def check(self) -> list[str]:
        """What is wrong with the relay or the server, one line each."""
        problems = (self._channels.problem(), server_problem(self._options, self._token))
        return [line for line in problems if line]

    def run(self, stop: threading.Event) -> None:
        """Send until stopped."""
        while not stop.is_set():
            try:
                self.send_due(stop)
            except Exception as error:  # whatever happens, sending goes on
                self._log_once.failure("messages", "messages: %r", error)
            else:
                self._log_once.forget("messages")
            stop.wait(_LOOK_SECONDS)

    def send_due(self, stop: threading.Event | None = None) -> None:
        """Send everything that is due."""
        now = int(self._clock())
        there = datetime.fromtimestamp(now, ZoneInfo(self._options.zone))
        given, minute = self._options, 60 * there.hour + there.minute
        with self._engine.begin() as db:
            waiting = outbox.waiting_counts(db, self._clusters)
            if waiting:
                dropped = outbox.drop_outdated(db, self._clusters, given.oldest, now)
                outbox.assign_batches(db, self._clusters, given.storm, given.gather, minute, now)
                due = outbox.due_batches(db, self._clusters, now)
        for cluster in self._clusters:
            self._metrics.messages_waiting.labels(cluster).set(waiting[cluster])
        if not waiting:
            return
        self._count(dropped, outbox.DROPPED)
        if time.monotonic() > self._addresses_until:
            self._channels.forget_addresses()
            self._addresses_until = time.monotonic() + _ADDRESS_SECONDS
        for batch in due:
            if stop is not None and stop.is_set():
                return
            self._send_batch(batch)

    def _send_batch(self, batch_id: int) -> None:
        now = int(self._clock())
        with self._engine.begin() as db:
            batch = outbox.claim(db, batch_id, self._lease_seconds, now)
            site = subscriptions.read_site(db)
        if batch is None:
            return
        try:
            outcome = self._try(batch, site, now)
        except Exception as error:  # one message must not keep the others back
            log.debug("message %d", batch_id, exc_info=error)
            outcome = Outcome("later", repr(error))
        first = batch.first
        place = self._channels.place(first.channel, first.target)
        if outcome.result == "sent":
            self._log_once.forget(place)
        else:
            self._log_once.warning(
                place, "message to %s by %s: %s: %s",
                first.username, place, outcome.result, outcome.detail,
            )  # fmt: skip
        self._note(batch, outcome)

    def _try(self, batch: MessageBatch, site: dict[str, str], now: int) -> Outcome:
        first = batch.first
        place = self._channels.place(first.channel, first.target)
        if self._spared.get(place, 0.0) > time.monotonic():
            return Outcome("later", f"{place} took nothing a moment ago")
        try:
            self._offer.check_target(first.channel, first.target)
        except ValueError as error:  # the site no longer allows it
            return Outcome("refused", str(error))
        patient = now - max(first.due_time, first.created_time) < _PATIENCE_SECONDS
        try:
            message = compose(batch, self._options, self._token, site, patient=patient)
        except NoReportError as error:
            return Outcome("later", str(error))
        outcome = self._channels.send(first.channel, first.target, message, site)
        if outcome.busy:
            self._spared[place] = time.monotonic() + _SPARED_SECONDS
        return outcome

    def _note(self, batch: MessageBatch, outcome: Outcome) -> None:
        """Note the outcome, however long the database refuses: nobody else knows of it."""
        while True:
            try:
                now, done = int(self._clock()), Counter[tuple[str, str]]()
                state = {"sent": outbox.SENT, "refused": outbox.FAILED}.get(outcome.result, "")
                with self._engine.begin() as db:
                    if state:
                        done = outbox.finish(db, batch.id, state, outcome.detail, now)
                    else:
                        doubt = outcome.result == "doubt"
                        outbox.postpone(db, batch, is_doubtful=doubt, now=now)
            except sa.exc.DBAPIError as error:
                self._log_once.failure("outbox", "messages: the database: %s", error.orig)
                time.sleep(_DATABASE_RETRY_SECONDS)
            else:
                self._log_once.forget("outbox")
                self._count(done, state)
                return

    def _count(self, rows: Counter[tuple[str, str]], result: str) -> None:
        for (cluster, channel), number in rows.items():
            self._metrics.messages.labels(cluster, channel, result).inc(number)
