"""People at a site: clients that each ask every two seconds."""

import http.client
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping

from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.tokens import TokenRole
from benchmarks.site.chain import Chain
from benchmarks.site.nodes import USERS

PAUSE_SECONDS = 2.0  # of a client between two requests
QUESTIONS = (
    ("user", "/api/v1/jobs"), ("user", "/jobs"), ("user", "/"), ("admin", "/api/v1/jobs"),
    ("admin", "/api/v1/jobs?state=COMPLETED"), ("admin", "/api/v1/jobs?running=true"),
    ("admin", "/api/v1/usage?by=account"), ("admin", "/clusters/site"), ("admin", "/admin"),
)  # fmt: skip


def client(
    chain: Chain, number: int, given: Mapping[str, str], until_time: float
) -> Iterator[tuple[str, float]]:
    """Questions in a random order with pauses: which it was, and milliseconds to the answer."""
    dice = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", chain.server_port, timeout=60)
    time.sleep(dice.uniform(0, PAUSE_SECONDS))
    while time.monotonic() < until_time:
        role, path = dice.choice(QUESTIONS)
        headers = {"Authorization": f"Bearer {given[role]}", "Accept-Encoding": "gzip"}
        if not path.startswith("/api/"):
            headers["Accept"] = "text/html"
        begun = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 303), f"{path}: {answer.status}"
        yield f"{role} {path}", 1000 * (time.perf_counter() - begun)
        time.sleep(dice.uniform(0, 2 * PAUSE_SECONDS))
    connection.close()


def asked(chain: Chain) -> dict[str, list[float]]:
    """Milliseconds of the answers to all clients, by question."""
    form, now = chain.form, int(time.time())
    with chain.engine.begin() as db:
        admin = tokens.create(db, "root", TokenRole.ADMIN, "benchmark", now)
        users = [
            tokens.create(db, f"user{n % USERS:04}", TokenRole.USER, "benchmark", now)
            for n in range(form.clients)
        ]
    found: dict[str, list[float]] = {}
    failures: list[BaseException] = []
    until_time = time.monotonic() + form.asking

    def work(number: int) -> None:
        try:
            given = {"user": users[number], "admin": admin}
            for question, milliseconds in client(chain, number, given, until_time):
                found.setdefault(question, []).append(milliseconds)
        except Exception as error:  # reported by the thread that waits for all
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(form.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return found


def answer_times(answered: Mapping[str, list[float]]) -> dict[str, float]:
    """Percentiles of all answers, and the median of each question."""
    everything = [each for times in answered.values() for each in times]
    parts = statistics.quantiles(everything, n=100, method="inclusive")
    found = {"answers": float(len(everything)), "ms, median": parts[49], "ms, 99 %": parts[98]}
    return found | {f"ms, {name}": statistics.median(answered[name]) for name in sorted(answered)}
