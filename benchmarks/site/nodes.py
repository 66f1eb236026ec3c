"""Exporters of many nodes in one process: pages at /NODE/metrics, records of their jobs in a file.

    python -m benchmarks.site.nodes EXPOSITION --port 10910 --nodes 100 --accounting jobs.jsonl

EXPOSITION is what a real exporter said of a node with jobs: names, labels and constants are its
own; ids, users and values are made here. Each node has so many jobs at once. A job lasts an
exponential time, as those that run at the beginning do from then on; another takes its place; and
its series stay for the exporter's linger. Counters grow at a rate of the job's own, which varies;
gauges vary by a tenth. Pages are compressed as the exporter's are. /counts has totals as JSON.
"""

import argparse
import asyncio
import heapq
import json
import math
import random
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

USERS, ACCOUNTS = 500, 40
TYPICAL_SECONDS = 600.0  # age at which counters have the values of the exposition
STEPS = ("batch", "extern")


class Line(NamedTuple):
    """A sample: what stands before the value, how the value changes, and what it is near."""

    head: str
    kind: str
    """counter, gauge, start (of the job) or constant."""
    value: float
    text: str
    """The value as the exposition has it."""


class Family(NamedTuple):
    """A metric of the exposition."""

    comment: str
    of_node: tuple[Line, ...]
    of_job: tuple[Line, ...]
    """Heads have %(jobid)s, %(user)s, %(account)s, %(uid)s and %(node)s in them."""


class Job(NamedTuple):
    """One that runs, or has ended and lingers; times in epoch seconds."""

    number: int
    node: int
    start: float
    end: float
    heads: tuple[tuple[str, ...], ...]
    """Of its samples in each family."""
    pace: float


_SAMPLE = re.compile(r"^(\w+(?:\{.*\})?) (\S+)$")
_CONSTANT = re.compile(
    r"_(limit_bytes|cpus|info|total_bytes|start_time_seconds|boot_time_seconds|success|max_fds)\b"
    r"|_jobs\b"
)


def families(text: str) -> tuple[Family, ...]:
    """The exposition's; all of its jobs look like its first."""
    first = re.search(r'jobid="(\w+)"', text)
    assert first, "no job in the exposition"
    found = []
    for piece in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE):
        lines = [line for line in piece.splitlines() if line]
        comments = "".join(f"{line}\n" for line in lines if line.startswith("#"))
        counter = " counter\n" in comments
        samples = [_line(line, counter) for line in lines if not line.startswith("#")]
        of_job = [each for each in samples if f'jobid="{first[1]}"' in each.head]
        of_node = [each for each in samples if "jobid=" not in each.head]
        found.append(
            Family(comments, tuple(of_node), tuple(_open(each, first[1]) for each in of_job))
        )
    return tuple(found)


def _line(line: str, counter: bool) -> Line:
    match = _SAMPLE.match(line)
    assert match, line
    head, text = match.groups()
    value = float(text)
    if "_job_start_time_seconds" in head:
        kind = "start"
    elif value <= 0 or _CONSTANT.search(head.partition("{")[0]):
        kind = "constant"
    else:
        kind = "counter" if counter else "gauge"
    return Line(f"{head} ", kind, value, text)


def _open(line: Line, jobid: str) -> Line:
    head = line.head.replace("%", "%%").replace(f'job_{jobid}"', 'job_%(jobid)s"')
    for label in ("jobid", "user", "account", "uid", "node"):
        head = re.sub(rf'(?<=[{{,]){label}="[^"]*"', f'{label}="%({label})s"', head)
    return line._replace(head=head)


class Site:
    """Nodes with their jobs at a moment that goes on by `advance`."""

    def __init__(
        self,
        exposition: str,
        nodes: int,
        jobs: int,
        job_seconds: float,
        linger: float,
        now: float,
        accounting: Callable[[dict[str, Any]], object] = lambda _: None,
    ) -> None:
        self.families = families(exposition)
        self.nodes = nodes
        self._job_seconds, self._linger, self._accounting = job_seconds, linger, accounting
        self._random = random.Random(1)
        self._jobs: dict[int, list[Job]] = defaultdict(list)
        self._ends: list[tuple[float, int, Job]] = []
        self._begun = now
        self.started = self.ended = 0
        for node in range(nodes):
            for _ in range(jobs):
                self._start(node, now - self._random.expovariate(1 / job_seconds), now)

    def name(self, node: int) -> str:
        return f"n{node:05}"

    def advance(self, now: float) -> None:
        """End what has ended, and start others in their place."""
        while self._ends and self._ends[0][0] <= now:
            _, _, job = heapq.heappop(self._ends)
            self.ended += 1
            self._accounting(self._record(job, ended=True))
            self._start(job.node, job.end, job.end)

    def _start(self, node: int, start: float, now: float) -> None:
        number = self.started = self.started + 1
        values = {
            "jobid": number, "user": f"user{number % USERS:04}", "uid": 20_000 + number % USERS,
            "account": f"account{number % ACCOUNTS:02}", "node": self.name(node),
        }  # fmt: skip
        heads = tuple(
            tuple(line.head % values for line in family.of_job) for family in self.families
        )
        # Exponential: the remaining time does not depend on how long the job has run.
        end = now + max(1.0, self._random.expovariate(1 / self._job_seconds))
        job = Job(number, node, start, end, heads, self._random.uniform(0.2, 2.0))
        here = [each for each in self._jobs[node] if each.end + self._linger > now]
        self._jobs[node] = [*here, job]
        heapq.heappush(self._ends, (end, number, job))
        self._accounting(self._record(job, ended=False))

    def _record(self, job: Job, ended: bool) -> dict[str, Any]:
        """As an accounting says it, with two steps where the job has ended."""
        start, end = int(job.start), int(job.end)
        state = "COMPLETED" if ended else "RUNNING"
        record: dict[str, Any] = {
            "jobid": str(job.number), "user": f"user{job.number % USERS:04}", "state": state,
            "uid": 20_000 + job.number % USERS, "account": f"account{job.number % ACCOUNTS:02}",
            "partition": "cpu", "qos": "normal", "name": f"job-{job.number % 50}",
            "submit_time": start - 60, "start_time": start, "allocated_cpus": 4,
            "requested_cpus": 4, "requested_memory_bytes": 1 << 30, "requested_nodes": 1,
            "allocated_memory_bytes": 1 << 30, "allocated_nodes": 1, "time_limit_seconds": 86_400,
            "node_list": self.name(job.node), "nodes": [{"node": self.name(job.node), "cpus": 4}],
            "submit_line": "sbatch job.sh", "work_dir": f"/home/user{job.number % USERS:04}/run",
            "allocated_resources": "billing=4,cpu=4,mem=1G,node=1",
        }  # fmt: skip
        if ended:
            record |= {"end_time": end, "elapsed_seconds": end - start, "exit_code": 0}
            record["steps"] = [
                {"step": step, "state": state, "state_word": state, "start_time": start,
                 "end_time": end, "elapsed_seconds": end - start, "exit_code": 0, "nodes": 1,
                 "node_list": self.name(job.node), "tasks": 1, "cpus": 4,
                 "peak_task_memory_bytes": 512 << 20}
                for step in STEPS
            ]  # fmt: skip
        return record

    def page(self, node: int, now: float) -> bytes:
        """What the node's exporter says."""
        jobs = [each for each in self._jobs[node] if each.end + self._linger > now]
        age = now - self._begun + TYPICAL_SECONDS
        out: list[str] = []
        for index, family in enumerate(self.families):
            out.append(family.comment)
            out.extend(line.head + _value(line, age, 1.0, node) for line in family.of_node)
            for job in jobs:
                old = max(0.0, min(now, job.end) - job.start)
                for head, line in zip(job.heads[index], family.of_job, strict=True):
                    if line.kind == "start":
                        out.append(f"{head}{job.start:.3f}\n")
                    else:
                        out.append(head + _value(line, old, job.pace, job.number))
        return "".join(out).encode()


def _value(line: Line, age: float, pace: float, phase: int) -> str:
    if line.kind == "counter":
        # Its slope is between 0.5 and 1.5 times the pace.
        seconds = age + 10 * math.sin(age / 20 + phase)
        value = line.value * pace * max(0.0, seconds) / TYPICAL_SECONDS
    elif line.kind == "gauge":
        value = line.value * pace * (0.95 + 0.1 * random.random())
    else:
        return f"{line.text}\n"
    return f"{int(value)}\n" if line.text.isdigit() else f"{value:.6f}\n"


class _Exporters(asyncio.Protocol):
    """A scraper's connection."""

    def __init__(self, site: Site, counts: dict[str, int]) -> None:
        self._site, self._counts, self._received = site, counts, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, _, self._received = self._received.partition(b"\r\n\r\n")
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        assert self._transport is not None
        path = request.split(b" ", 2)[1].decode()
        if path == "/counts":
            counts = {**self._counts, "started": self._site.started, "ended": self._site.ended}
            body, kind = json.dumps(counts).encode(), ""
        else:
            page = self._site.page(int(path[2:7]), time.time())
            body, kind = zlib.compress(page, level=1, wbits=31), "Content-Encoding: gzip\r\n"
            self._counts["pages"] += 1
            self._counts["text_bytes"] += len(page)
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
            f"{kind}Content-Length: {len(body)}\r\n\r\n"
        )
        if kind:
            self._counts["wire_bytes"] += len(head) + len(body)
        self._transport.write(head.encode() + body)


async def serve(given: argparse.Namespace) -> None:
    """Answer until the process is ended."""
    loop = asyncio.get_running_loop()
    with given.accounting.open("a", buffering=1 << 20) as file:
        site = Site(
            given.exposition.read_text(), given.nodes, given.jobs, given.job_seconds, given.linger,
            time.time(), lambda record: file.write(json.dumps(record) + "\n"),
        )  # fmt: skip
        file.flush()
        counts = {"pages": 0, "text_bytes": 0, "wire_bytes": 0}
        await loop.create_server(
            lambda: _Exporters(site, counts), "127.0.0.1", given.port, backlog=4096
        )
        while True:
            site.advance(time.time())
            file.flush()
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exposition", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--accounting", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=10, help="on each node at once")
    parser.add_argument("--job-seconds", type=float, default=600.0, help="mean length of a job")
    parser.add_argument("--linger", type=float, default=30.0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
