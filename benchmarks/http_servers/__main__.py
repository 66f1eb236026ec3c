"""Ways to serve an exporter's metrics, under the same attacks: which is the smallest that holds?

    python -m benchmarks.http_servers                  # 1000 clients of each kind, about an hour
    python -m benchmarks.http_servers --transport plain --kind silent slow --seconds 5

    own         the exporter as it is
    threads     the standard library's `http.server`: a thread for each connection, up to a maximum
    streams     the standard library's `asyncio`, whose answers are made by a few threads

All give the same limits: connections, connections of an address, and times. See hostile.py for
what is measured.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import hostile, trees
from benchmarks.scrape import table
from tests.helpers.waiting import until
from tests.security.scraped_exporter import TRANSPORTS, scraped

_SERVERS = ("own", "threads", "streams")


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each server, transport and kind of clients."""
    prefix = (sys.executable, "-m", "benchmarks.http_servers.serve")
    with trees.make("copy", options.jobs) as tree:
        flag = f"--path.cgroupfs={tree.cgroupfs}"
        for transport, name in ((each, name) for each in options.transport for name in _SERVERS):
            with (
                tempfile.TemporaryDirectory() as folder,
                scraped(transport, Path(folder), flag, inside=(*prefix, name)) as server,
            ):
                until(lambda: server.scrape()[0] == 200, "scraped")
                time.sleep(5.0)  # until every job has been read
                for kind in ("nobody", *options.kind):
                    found = hostile.row(server, kind, options)
                    yield {"transport": transport, "server": name, **found}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transport", choices=TRANSPORTS, nargs="+", default=TRANSPORTS[:2])
    hostile.add_clients(parser)
    print("\n".join(table(list(rows(parser.parse_args())))))


if __name__ == "__main__":
    main()
