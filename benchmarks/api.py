"""How fast the server answers from a database of many jobs, beside the same SQL without it.

    python -m benchmarks.ingest read --jobs 10000000 --database /var/tmp/many.db   # makes it
    python -m benchmarks.api --database /var/tmp/many.db

Starts the server and asks it with wrk (in Debian): by 1 and 10 clients without a pause, and by 50
that each ask every two seconds, at random. Each has a connection of its own, and no two questions
that cost something are the same.
Beside: as many threads with connections of their own that run the same statements through sqlite3
and fetch their rows. Makes two tokens in the database, and takes them away again.
"""

import argparse
import contextlib
import math
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from batchjob_cli.job_columns import DEFAULT_KEYS
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.job_list import list_jobs
from benchmarks.measure import cpu_seconds, resident_bytes

BEGIN = 1_735_689_600  # of the year in benchmarks/ingest.py
END = BEGIN + 365 * DAY
USER = "user0042"
BESIDE = "a user's newest 100"
MANY = 50  # from this many clients on, clients pause between two requests
PAUSE_SECONDS = 2

# With `+n`, requests differ, but their answers hardly do.
QUESTIONS: dict[str, tuple[str, str]] = {
    BESIDE: ("user", "jobs"),
    "the same, 5 keys of each": (
        "user", "jobs?fields=jobid,state,start_time,elapsed_seconds,cpu_efficiency"
                f"&started_before={END}+n"),
    "the same, keys of `batchjob jobs`": (
        "user", f"jobs?fields={','.join(DEFAULT_KEYS)}&started_before={END}+n"),
    "everybody's newest 100": ("admin", "jobs"),
    "an account's newest 100": ("admin", "jobs?account=account042"),
    "a node's newest 100": ("admin", "jobs?node=n0500"),
    "everybody's failed jobs": ("admin", f"jobs?state=FAILED&started_before={END}+n"),
    "a name, once in a million": ("admin", f"jobs?name=nothing-like-it&started_before={END}+n"),
    "last ended 100": ("admin", f"jobs?sort=-end_time&ended_before={END}+n"),
    "running now": ("admin", f"jobs?running=true&started_before={END}+n"),
    "a user's year by CPU efficiency": ("user", f"jobs?sort=cpu_efficiency&started_before={END}+n"),
    "everybody's day by energy": (
        "admin", f"jobs?sort=-usage_energy_joules&started_from={END - 9 * DAY}"
                 f"&started_before={END - 8 * DAY}+n"),
    "three days by energy": (
        "admin", f"jobs?sort=-usage_energy_joules&started_from={END - 9 * DAY}"
                 f"&started_before={END - 6 * DAY}+n"),
    "a job by id": ("admin", "jobs/7654321"),
    "everybody's arrays of a day": (
        "admin", f"jobs?arrays_once=true&started_from={END - 9 * DAY}"
                 f"&started_before={END - 8 * DAY}+n"),
    "sums by account, 30 days": (
        "admin", f"usage?by=account&since={END - 30 * DAY}&until={END}+n"),
    "sums by day, a year": ("admin", f"usage?by=day&since={BEGIN}&until={END}+n"),
    "sums by user, a year": ("admin", f"usage?by=user&since={BEGIN}&until={END}+n"),
    "a user's year by day": ("user", f"usage?by=day&since={BEGIN}&until={END}+n"),
    "most CPU time wasted, a year": ("admin", f"stats/waste?since={BEGIN}&until={END}+n"),
    "waits, a year": ("admin", f"stats/waits?since={BEGIN}&until={END}+n"),
    "a user's waits, a year": ("user", f"stats/waits?since={BEGIN}&until={END}+n"),
    "idle GPUs": ("admin", "stats/idle-gpus?held_at_least=1800+n"),
}  # fmt: skip


class Served(NamedTuple):
    """A server and whom it knows."""

    pid: int
    port: int
    tokens: dict[str, str]


@contextlib.contextmanager
def served(database: Path) -> Iterator[Served]:
    """A server with a token for each role."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    engine = writer_engine(parse_url(f"sqlite:///{database}"))
    with engine.begin() as db:
        made = {
            "user": tokens.create(db, USER, TokenRole.USER, "benchmark", END),
            "admin": tokens.create(db, "root", TokenRole.ADMIN, "benchmark", END),
        }
    argv = [
        sys.executable, "-m", "batchjob_stats_server", f"--db.url=sqlite:///{database}",
        f"--web.listen-address=127.0.0.1:{port}", "--limit.user-rate=0", "--limit.peer-rate=0",
    ]  # fmt: skip
    try:
        with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
            try:
                _await(server, port)
                yield Served(server.pid, port, made)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(60)
    finally:
        with engine.begin() as db:
            db.execute(sa.text("DELETE FROM api_token WHERE label = 'benchmark'"))
        engine.dispose()


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(200):
        assert server.poll() is None, "the server did not start"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
            return
        time.sleep(0.1)
    raise TimeoutError("the server did not start")


def _drained(pid: int) -> None:
    """Wait until the questions that wrk left behind are done with."""
    spent = -1.0
    while (now := cpu_seconds(pid)) - spent > 0.01:
        spent = now
        time.sleep(0.3)


_SCRIPT = """
local n = 0
function request()
  n = n + 1
  return wrk.format(nil, (("%s"):gsub("(%%d+)%%+n", function(from) return from + n end)))
end
function delay()
  return math.random(0, %d)
end
"""
_LATENCY = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m)\s*$", re.MULTILINE)
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


def asked(
    server: Served, question: tuple[str, str], clients: int, seconds: float
) -> tuple[float, float]:
    """Milliseconds of the median and the 99th percentile; nothing but 200 is an answer."""
    role, path = question
    path = f"/api/v1/{path}"
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        pause = 2 * 1000 * PAUSE_SECONDS if clients >= MANY else 0
        script.write(_SCRIPT % (path, pause))
        script.flush()
        argv = [
            "wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "--timeout", "60s",
            "-s", script.name, "-H", f"Authorization: Bearer {server.tokens[role]}",
            f"http://127.0.0.1:{server.port}{path.replace('+n', '')}",
        ]  # fmt: skip
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    _drained(server.pid)
    assert not re.search("Non-2xx|Socket errors", said), f"{path}: {said}"
    found = {share: float(value) * _UNITS[unit] for share, value, unit in _LATENCY.findall(said)}
    return found["50"], found["99"]


Statement = tuple[str, tuple[object, ...]]


def statements(database: Path, access: Access) -> list[Statement]:
    """The SQL of a page of 100 jobs."""
    engine = reader_engine(parse_url(f"sqlite:///{database}"))
    seen: list[Statement] = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda _c, _cur, sql, given, *_: seen.append((sql, given))
    )
    with engine.connect() as db:
        list_jobs(db, access)
    engine.dispose()
    return seen


def raw(
    database: Path, wanted: list[Statement], clients: int, seconds: float
) -> tuple[float, float]:
    """The same of as many threads that do no more than that."""
    times: list[float] = []
    until = time.perf_counter() + seconds

    def work() -> None:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        connection.execute("PRAGMA cache_size=-65536")
        while (begun := time.perf_counter()) < until:
            for sql, given in wanted:
                connection.execute(sql, given).fetchall()
            times.append(1000 * (time.perf_counter() - begun))
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--seconds", type=int, default=2, help="for each question and number")
    parser.add_argument("--only", default="", help="questions with this in their name")
    given = parser.parse_args()
    chosen = {name: each for name, each in QUESTIONS.items() if given.only in name}
    print("ms, median / 99th percentile, by clients at once")
    print(f"  {'':34}" + "".join(f"{clients:>20}" for clients in given.clients))

    def show(name: str, figures: list[tuple[float, float]]) -> None:
        cells = (f"{median:.1f} / {worst:.1f}" for median, worst in figures)
        print(f"  {name:34}" + "".join(f"{cell:>20}" for cell in cells), flush=True)

    with served(given.database) as server:
        alone = {name: asked(server, question, 1, 1)[0] for name, question in chosen.items()}
        begun = resident_bytes(server.pid)
        for name, question in chosen.items():
            # Long enough for every client to be answered, not only the first in the queue.
            least = 3 * alone[name] / 1000
            show(name, [
                asked(server, question, n, max(
                    given.seconds, math.ceil(n * least), 5 * PAUSE_SECONDS * (n >= MANY)
                ))
                for n in given.clients
            ])  # fmt: skip
            if name == BESIDE:
                wanted = statements(given.database, Access((ClusterLogin("", USER),)))
                show("  its SQL alone", [
                    raw(given.database, wanted, n, given.seconds) for n in given.clients
                ])  # fmt: skip
        print(
            f"  the server's memory: {begun >> 20} MiB after each question was asked once, "
            f"{resident_bytes(server.pid) >> 20} MiB at the end, "
            f"{resident_bytes(server.pid, peak=True) >> 20} MiB at most"
        )


if __name__ == "__main__":
    main()
