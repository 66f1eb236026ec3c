"""What hostile clients do to those who ask rightly: how long an answer takes in their midst.

    python -m benchmarks.hostile                                    # 1000 clients of each kind
    python -m benchmarks.hostile --transport plain --kind silent slow --seconds 5 --addresses 50
    python -m benchmarks.hostile --transport server                 # the server instead

An exporter with the files of 100 jobs is scraped, or the server is asked for `/api/v1/me` with a
token, ten times a second, each time over a connection of its own, from another address than the
clients'. An exporter needs root, for the jobs' processes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure, trees
from benchmarks.scrape import table
from tests.helpers.waiting import until
from tests.security.hostile_clients import KINDS, hostile
from tests.security.scraped_exporter import TRANSPORTS, Scraped, scraped
from tests.security.served_api import ServedApi, served_api

_PAUSE = 0.1
_NOBODY = "nobody"
_SERVER = "server"


def row(server: Scraped | ServedApi, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One kind of clients against one exporter."""
    if kind == _NOBODY:
        return {"clients": kind, "connections": 0, **scrapes(server, options.seconds)}
    tls = server.context is not None
    with hostile(
        kind, options.clients, server.address, tls=tls, addresses=options.addresses
    ) as crowd:
        time.sleep(2.0)
        found = scrapes(server, options.seconds)
    return {"clients": kind, "connections": crowd.outcome.connected, **found}


def scrapes(server: Scraped | ServedApi, seconds: float) -> dict[str, Any]:
    """Ask for some time: how often that went well, how long it took, what the program used."""
    pid = server.target.pid
    taken, failed = [], 0
    begin, cpu = time.monotonic(), measure.cpu_seconds(pid)
    while time.monotonic() - begin < seconds:
        try:
            status, duration = server.scrape()
        except OSError:
            status, duration = 0, 0.0
        if status == 200:
            taken.append(1e3 * duration)
        else:
            failed += 1
        time.sleep(_PAUSE)
    return {
        "answered": len(taken),
        "failed": failed,
        "median_ms": statistics.median(taken) if taken else "",
        "longest_ms": max(taken, default=""),
        "cpu_percent": 100 * (measure.cpu_seconds(pid) - cpu) / (time.monotonic() - begin),
        "rss_mb": measure.resident_bytes(pid) / 1e6,
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each transport and kind of clients."""
    transports = [each for each in options.transport if each != _SERVER]
    if _SERVER in options.transport:
        with tempfile.TemporaryDirectory() as folder, served_api(Path(folder)) as api:
            for kind in (_NOBODY, *options.kind):
                yield {"transport": _SERVER, **row(api, kind, options)}
    if not transports:
        return
    with trees.make("copy", options.jobs) as tree:
        for transport in transports:
            with (
                tempfile.TemporaryDirectory() as folder,
                scraped(transport, Path(folder), f"--path.cgroupfs={tree.cgroupfs}") as server,
            ):
                until(lambda: server.scrape()[0] == 200, "scraped")
                time.sleep(5.0)  # until every job has been read
                for kind in (_NOBODY, *options.kind):
                    yield {"transport": transport, **row(server, kind, options)}


def add_clients(parser: argparse.ArgumentParser) -> None:
    """Options that say which clients there are, and for how long."""
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--addresses", type=int, default=1, help="from which the clients come")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind")
    parser.add_argument("--jobs", type=int, default=100)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--transport", choices=(*TRANSPORTS, _SERVER), nargs="+", default=TRANSPORTS
    )
    add_clients(parser)
    print("\n".join(table(list(rows(parser.parse_args())))))


if __name__ == "__main__":
    main()
