"""An exporter behind another server: what `batchjob_exporter` does, with one class replaced."""

import sys
from typing import Any

from batchjob_exporter import main, service


def other(name: str) -> Any:
    """The server of this name; none is loaded but the one that is asked for."""
    if name == "threads":
        from benchmarks.http_servers.threads import Threads

        return Threads
    if name == "streams":
        from benchmarks.http_servers.streams import Streams

        return Streams
    return service.HttpServer  # type: ignore[attr-defined]  # imported there


if __name__ == "__main__":
    service.HttpServer = other(sys.argv[1])  # type: ignore[attr-defined]
    sys.exit(main.main(sys.argv[5:]))  # the flags after `python -m batchjob_exporter`
