"""What the PromQL gate adds to a small query: milliseconds, and CPU time of the server.

    python -m benchmarks.gate

Starts a Prometheus with the series of twenty jobs and the server in front of it, and asks both the
same question in turn, over one connection each, as a user with a token. Both answer with gzip. Then
it asks the server alone, one query after the other, for the CPU time of a query.
"""

import argparse
import gzip
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import sqlalchemy as sa

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from benchmarks.measure import cpu_seconds
from tests.batchjob_stats_db.tsdb import line, run_prometheus
from tests.helpers.waiting import until

AT = 1_700_000_400
QUERY = f"/api/v1/query?time={AT}&query=" + quote("sum by (jobid) (batchjob_job_cpus)")
GATE = "/api/v1/prometheus"


def main() -> None:
    """Start, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    given = parser.parse_args()
    lines = [line("cpus", 4, AT - 60, jobid=str(number)) for number in range(20)]
    with (
        tempfile.TemporaryDirectory() as folder,
        run_prometheus(lines) as store,
        server(Path(folder), store.url) as (process, port, token),
    ):
        direct = http.client.HTTPConnection("127.0.0.1", urlsplit(store.url).port)
        gate = http.client.HTTPConnection("127.0.0.1", port)
        compare(given.times, process.pid, direct, gate, token)


@contextmanager
def server(folder: Path, store: str) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """The server's process, its port, and a token of alice's."""
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    with engine.begin() as db:
        db.execute(sa.insert(schema.cluster).values(name="c1", first_time=AT))
        token = tokens.create(db, "alice", TokenRole.USER, "benchmark", int(time.time()) + 86400)
    engine.dispose()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    argv = [
        sys.executable, "-m", "batchjob_stats_server", f"--db.url=sqlite:///{folder}/jobs.db",
        f"--tsdb.url={store}", f"--web.listen-address=127.0.0.1:{port}",
        "--limit.user-rate=0", "--limit.peer-rate=0",
    ]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(port), "the server answers")
            yield process, port, token
        finally:
            process.terminate()


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def compare(
    times: int,
    pid: int,
    direct: http.client.HTTPConnection,
    gate: http.client.HTTPConnection,
    token: str,
) -> None:
    """Print how long each takes, and the server's CPU time for one question."""
    identity = {"Authorization": f"Bearer {token}"}
    taken: dict[str, list[float]] = {"direct": [], "gate": []}
    for number in range(times + 50):  # 50 more for warming up, which do not count
        for name, connection, path, headers in (
            ("direct", direct, QUERY, {}),
            ("gate", gate, GATE + QUERY, identity),
        ):
            begun = time.perf_counter()
            asked(connection, path, headers)
            if number >= 50:
                taken[name].append(1000 * (time.perf_counter() - begun))
    before = cpu_seconds(pid)
    for _ in range(times):
        asked(gate, GATE + QUERY, identity)
    spent = 1000 * (cpu_seconds(pid) - before) / times
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for name, each in taken.items():
        worst = statistics.quantiles(each, n=100)[98]
        print(
            f"{name:8}{medians[name]:8.2f} ms in the median{worst:8.2f} ms at the 99th percentile"
        )
    print(f"added   {medians['gate'] - medians['direct']:8.2f} ms, and {spent:.2f} ms CPU")


def asked(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> None:
    """One answer, with twenty jobs in it."""
    connection.request("GET", path, headers={"Accept-Encoding": "gzip", **headers})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    if answer.getheader("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    assert len(json.loads(body)["data"]["result"]) == 20


if __name__ == "__main__":
    main()
