"""Citizens who make others wait without an end."""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from unittest import mock

import sqlalchemy as sa

from batchjob_exporter.exporter import Exporter
from batchjob_exporter.web import site as exporter_site
from batchjob_exporter.web.message import HttpRequest
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine
from batchjob_stats_db.isolation import Patience
from batchjob_stats_server.pages import job as job_page
from tests.helpers.waiting import scaled
from tests.security.citizens.citizen import citizen, own_job
from tests.security.one_bad_citizen import CITIZEN, ROUND_SECONDS

WAITS = "waits"


def is_done_while_hanging(ask: Callable[[Callable[..., object]], object], seconds: float) -> bool:
    """Whether `ask` is done in time, given a function that hangs until then, a minute at most."""
    end = threading.Event()
    thread = threading.Thread(target=ask, args=(lambda *_: end.wait(60),), daemon=True)
    thread.start()
    thread.join(scaled(seconds))
    done = not thread.is_alive()
    end.set()
    thread.join(scaled(60))
    return done


@citizen(WAITS)
def store_of_time_series_that_hangs(site, dice):
    """Pages show what is recorded."""
    job = next(reversed(site.jobs.values()))
    site.now += 3600  # the last reading is too old to be shown
    path = dice.choice(["/clusters/c1", "/admin", f"/jobs/{job.jobid}"])

    def ask(hang):
        site.nodes.wait = hang
        site.get("root", path, Accept="text/html")

    done = is_done_while_hanging(ask, 8)
    site.nodes.wait = bool
    assert done, f"{path} waits for the store"


@citizen(WAITS)
def user_whose_requests_take_long(site, dice):
    """The threads of a kind do not all belong to one user."""
    queue = dice.choice([site.services.threads.files, site.services.threads.heavy])

    async def ask() -> str:
        end = threading.Event()
        slow = [asyncio.ensure_future(queue.run(CITIZEN, lambda: end.wait(60))) for _ in range(30)]
        try:
            await asyncio.sleep(0.01)
            return await asyncio.wait_for(queue.run("alice", lambda: "answer"), scaled(2))
        finally:
            end.set()
            await asyncio.gather(*slow)

    assert site.client.portal.call(ask) == "answer"


@citizen(WAITS)
def file_system_that_hangs(site, dice):
    """The page of a failed run is shown without its last lines."""
    job = own_job(site)
    site.write_json_line(site.json_record(job, state=dice.choice(["FAILED", "TIMEOUT"])))
    site.now += ROUND_SECONDS
    site.poll()

    def ask(hang):
        def hangs(*_):
            hang()
            return []

        with mock.patch.object(job_page, "last_lines", hangs):
            site.get(CITIZEN, f"/jobs/{job.jobid}", Accept="text/html")

    assert is_done_while_hanging(ask, 8)


@citizen(WAITS)
def scrape_that_may_wait_for_an_hour(site, dice):
    """A collector hangs, and a header asks for a long time: the exporter has a maximum."""
    header = dice.choice(["3600", "30", "1e300", "inf", "nan", "-1", "x"])
    headers = {"x-prometheus-scrape-timeout-seconds": header}
    request = HttpRequest("GET", "/metrics", (), headers, keep_alive=True)
    entered = threading.Event()

    def ask(hang):
        def collect():
            entered.set()
            hang()
            return []

        exporter = Exporter({"slow": SimpleNamespace(collect=collect)})
        threading.Thread(target=exporter.collect, daemon=True).start()
        assert entered.wait(scaled(5))
        with mock.patch("batchjob_exporter.web.site._MAX_TIMEOUT_SECONDS", 0.2):
            exporter.collect(seconds=exporter_site._seconds_left(request))

    assert is_done_while_hanging(ask, 5)


@citizen(WAITS)
def database_that_accepts_and_says_nothing(site, dice):
    """Whoever connects gives up."""
    make = dice.choice([reader_engine, writer_engine])
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = parse_url(f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x")

        def ask(hang):
            with mock.patch("batchjob_stats_db.database.engine._CONNECT_SECONDS", 2):
                engine = make(url)
            with suppress(sa.exc.OperationalError):
                engine.connect()

        # Without a limit, the connection ends when the listener does.
        thread = threading.Thread(target=ask, args=(None,), daemon=True)
        thread.start()
        thread.join(scaled(6))
        done = not thread.is_alive()
    assert done, "the connection is waited for"


@citizen(WAITS)
def source_whose_file_system_hangs(site, dice):
    """The other sources are read, and it is not asked again while it hangs."""
    source, end = site.poller.cluster.sources[-1], threading.Event()
    source.read = lambda *_: end.wait(scaled(60)) and []
    patience = mock.patch.object(site.poller, "_patience", Patience(dice.choice([0.1, 0.5])))
    patience.start()
    site.undo += [end.set, patience.stop, lambda: vars(source).pop("read")]
