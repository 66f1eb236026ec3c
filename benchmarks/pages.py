"""How fast pages come from a database of 33,000 jobs, and how much a browser loads for each.

    python -m benchmarks.pages

Makes the site that the tests have, with more jobs, starts the server in a process of its own and
asks for each page again and again over one connection, as an admin and as a user. Prints the median
and the 99th percentile in milliseconds, the CPU time of the server for a page, which tells more
where others use the machine as well, and the bytes of the page as it comes, compressed. With
`--check` it fails where a page takes longer, or weighs more, than it may.
"""

import argparse
import gzip
import http.client
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server.options import LimitOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from benchmarks.measure import cpu_seconds
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.serving import serving

MOST_BYTES = 60_000
MOST_MILLISECONDS = 30.0
PAGES = {
    "user": ("/", "/mine", "/jobs", "/usage", "/clusters/alpha", "/clusters/alpha/nodes/a010",
             "/embed/jobs", "/clusters/alpha/accounts/physics"),
    "admin": ("/jobs", "/jobs?limit=200", "/jobs?state=FAILED&user=bob",
              "/jobs/40120?cluster=alpha", "/compare?job=alpha:40120&job=alpha:40133",
              "/usage", "/usage?by=account",
              "/clusters", "/clusters/alpha", "/clusters/alpha/nodes/a010",
              "/clusters/alpha/accounts/physics", "/admin", "/embed/jobs/40120?cluster=alpha",
              "/search?q=40120"),
}  # fmt: skip


class PageCost(NamedTuple):
    """Of one page; milliseconds, and bytes as they came."""

    median: float
    worst: float
    cpu: float
    size: int


def cost(
    connection: http.client.HTTPConnection, pid: int, path: str, token: str, times: int
) -> PageCost:
    """Ask the server so many times, after some that do not count."""
    headers = {
        "Authorization": f"Bearer {token}", "Accept": "text/html", "Accept-Encoding": "gzip"
    }  # fmt: skip
    taken: list[float] = []
    used = 0.0
    for number in range(times + 5):
        if number == 5:
            used = cpu_seconds(pid)
        begun = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status in (200, 303), f"{path}: {answer.status}"
        if number >= 5:
            taken.append(1000 * (time.perf_counter() - begun))
    if answer.getheader("Content-Encoding") == "gzip":
        assert gzip.decompress(body)
    used = 1000 * (cpu_seconds(pid) - used) / times
    worst = statistics.quantiles(taken, n=100)[98]
    return PageCost(statistics.median(taken), worst, used, len(body))


def serve(path: Path, port: Connection) -> None:
    """Send the port at which the site's server answers; it runs until it is asked to end."""
    settings = ServerSettings(
        DatabaseOptions(f"sqlite:///{path}"), ServerWebOptions(),
        limit=LimitOptions(user_rate=0.0, peer_rate=0.0),
    )  # fmt: skip
    services = build(settings)._replace(clock=lambda: example_site.NOW)
    with serving(services) as number:
        port.send(number)
        port.recv()


@contextmanager
def server(path: Path) -> Iterator[tuple[int, int]]:
    """The process and the port of a server, which no thread of the client holds up."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(path, there))
    process.start()
    try:
        assert process.pid
        yield process.pid, here.recv()
    finally:
        here.send(None)
        process.join(30)


def main() -> None:
    """Make, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=33_000)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        tokens = dict(zip(("user", "admin"), example_site.make(path, given.jobs), strict=True))
        print(f"{'':52}{'median':>10}{'99 %':>10}{'CPU':>10}{'bytes':>10}")
        over = []
        with server(path) as (pid, port):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            for role, paths in PAGES.items():
                for page in paths:
                    found = cost(connection, pid, page, tokens[role], given.times)
                    name = f"{role}: {page}"
                    times = (found.median, found.worst, found.cpu)
                    print(f"{name:52}{''.join(f'{each:>10.1f}' for each in times)}{found.size:>10}")
                    if found.worst > MOST_MILLISECONDS or found.size > MOST_BYTES:
                        over.append(name)
            connection.close()
    print(f"above {MOST_MILLISECONDS:g} ms or {MOST_BYTES} bytes: {', '.join(over) or 'none'}")
    if given.check and over:
        sys.exit(1)


if __name__ == "__main__":
    main()
