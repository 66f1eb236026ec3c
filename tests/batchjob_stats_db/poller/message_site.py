"""A site that sends messages: a relay, a server with reports, and a clock that tests set."""

import contextlib
from collections.abc import Iterator

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.subscriptions import Subscription, add, parse_wish, write_offer
from batchjob_stats_db.poller.messages.causes import Causes
from batchjob_stats_db.poller.messages.options import MessageOptions
from batchjob_stats_db.poller.messages.sender import Sender
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from tests.helpers.http_server import FakeServer, Request, Response, json_response, serving
from tests.helpers.mail_relay import Relay

REPORT_PAGE = b"<!doctype html><html><body><h1>report</h1></body></html>"


def answer_report(request: Request) -> Response:
    """A report in each form, as batchjob_stats_server gives it."""
    form = request.form.get("format", ["json"])[0]
    if request.path == "/api/v1/me":
        return json_response({"role": "viewer"})
    if form == "text":
        return Response(f"The report {request.path}\n".encode())
    return Response(REPORT_PAGE) if form == "html" else json_response({"path": request.path})


class MessageSite:
    """Records, what is sent of them, and the time."""

    def __init__(self, engine, store: Store, relay: Relay, server: FakeServer, token: str, **given):
        self.now = int(store.clock())
        self.engine, self.store, self.relay, self.server = engine, store, relay, server
        store.clock = lambda: self.now
        options = {
            "server": server.url, "token_file": token, "link": "https://jobs.example.org",
            "smtp": relay.address, "smtp_tls": "none", "sender": "batchjob@example.org",
            "address": "{user}@example.org", "default": (parse_wish("end"),), **given,
        }  # fmt: skip
        self.options = MessageOptions(**options)
        self.metrics = PollerMetrics()
        self.causes = Causes(store, self.options)
        with engine.begin() as db:
            write_offer(db, "c1", self.options.offer(), self.now - 10**6)
        self.sender = self.new_sender()

    def new_sender(self, lease_seconds: int = 0) -> Sender:
        return Sender(
            self.engine, ["c1"], self.options, self.metrics, lambda: self.now, lease_seconds
        )

    def write(self, *jobs) -> None:
        """What a poll brings."""
        self.store.write(Batch(jobs, (), "1", self.now), "sacct")

    def subscribe(self, user: str, wish: str, channel: str = "mail", target: str = "", **more):
        event, threshold = parse_wish(wish)
        given = {"cluster": "", "jobid": "", "account": "", "quiet_hours": "", **more}
        with self.engine.begin() as db:
            add(db, Subscription(0, user, event, channel, target, threshold=threshold,
                                 created_time=self.now, **given))  # fmt: skip

    def send(self, after: int = 0) -> None:
        """Let time pass, and send what is due."""
        self.now += after
        self.sender.send_due()

    @property
    def recipients(self) -> list[str]:
        return [address for addresses in self.relay.recipients for address in addresses]

    @property
    def subjects(self) -> list[str]:
        return [mail["Subject"] for mail in self.relay.mails]

    def count(self, result: str, channel: str = "mail") -> float:
        labels = {"cluster": "c1", "channel": channel, "result": result}
        name = "batchjob_stats_db_messages_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@contextlib.contextmanager
def message_site(engine, store, tmp_path, answer=answer_report, **given) -> Iterator[MessageSite]:
    """A site with a default of one mail at the end of each job."""
    token = tmp_path / "token"
    token.write_text("bj_" + 43 * "a")
    token.chmod(0o600)
    with serving(answer) as server:
        site = MessageSite(engine, store, Relay(), server, str(token), **given)
        try:
            yield site
        finally:
            site.relay.stop()
