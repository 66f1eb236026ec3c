"""What one scrape costs, beside the least it could cost; all in one run on the same job trees.

    python -m benchmarks.scrape                             # 1, 10, 100 and 1000 jobs
    python -m benchmarks.scrape --jobs 100 --tree v1 copy --everything
    python -m benchmarks.scrape --other 'cgroup_exporter --web.listen-address=:9306' \
        --other-url http://127.0.0.1:9306/metrics

(a) `open`: a C program that opens, reads and closes the very files that a scrape of ours reads
(b) `keep`: the same with descriptors kept open (benchmarks/readers.c)
(c) `client`: the same families written down by prometheus-client (benchmarks/rendering.py)
(d) `other`: any other exporter, given as a command line

The files are those that strace saw the exporter read below its cgroupfs during each of two scrapes;
limits, which are read once a minute, are not among them. Before each scrape and each round of the C
programs every job works for a moment, so that files change. Needs root, cc and strace.
"""

import argparse
import contextlib
import http.client
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.quantities.job import METRIC_GROUPS
from benchmarks import measure, trees
from tests.e2e import exporter
from tests.helpers.processes import daemon
from tests.helpers.waiting import until

HERE = Path(__file__).parent
JOBS_ALONE = ("--collector.disable-defaults", "--collector.jobs")
# Including what is off by default.
EVERYTHING = tuple(f"--collector.jobs.metrics={group}" for group in METRIC_GROUPS)
TURNS = 5  # measurements take turns, and the median of each counts


class Cost(NamedTuple):
    """Of one scrape."""

    cpu_ms: float
    wall_ms: float
    bytes: float


def scraper(url: str) -> Callable[[], bytes]:
    """A client that keeps its connection, as Prometheus does, without its parsing."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)

    def scrape() -> bytes:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    return scrape


def cost(
    pid: int, scrape: Callable[[], bytes], scrapes: int, between: Callable[[], None] = lambda: None
) -> Cost:
    """Mean of a few scrapes, with something done between them."""
    size, cpu, wall = 0, 0.0, 0.0
    for _ in range(scrapes):
        between()
        cpu_before, wall_before = measure.cpu_seconds(pid), time.monotonic()
        size += len(scrape())
        cpu += measure.cpu_seconds(pid) - cpu_before
        wall += time.monotonic() - wall_before
    return Cost(1e3 * cpu / scrapes, 1e3 * wall / scrapes, size / scrapes)


def readers(
    program: Path, mode: str, paths: list[str], rounds: int, between: Callable[[], None]
) -> dict[str, float]:
    """Run the C program over so many rounds."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(paths))
        file.flush()
        argv = [program, mode, file.name]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            for _ in range(rounds):
                between()
                process.stdin.write(b"\n")
                process.stdin.flush()
            answer: dict[str, float] = json.loads(process.communicate()[0])
    return answer


def median(costs: list[Cost]) -> Cost:
    """Of each column."""
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def measured(
    target: exporter.Target, tree: trees.Tree, program: Path, scrapes: int
) -> dict[str, Any]:
    """One row: our exporter and the programs that read the same files."""
    scrape = scraper(f"http://{target.address}/metrics")
    text = scrape().decode()
    before, seen = (measure.trace(target.pid, scrape) for _ in range(2))
    files = before.files.keys() & seen.files.keys()
    paths = sorted(path for path in files if path.startswith(f"{tree.cgroupfs}/"))
    ours: list[Cost] = []
    floor: dict[str, list[dict[str, float]]] = {"open": [], "keep": []}
    for _ in range(TURNS):
        ours.append(cost(target.pid, scrape, scrapes, tree.stir))
        for mode, results in floor.items():
            results.append(readers(program, mode, paths, scrapes, tree.stir))
    mine = median(ours)
    row: dict[str, Any] = {
        "tree": tree.kind,
        "samples": sum(not line.startswith("#") for line in text.splitlines()),
        "files": len(paths),
        "bytes_read": seen.bytes,
        "calls": sum(seen.calls.values()),
        **mine._asdict(),
        "rss_mb": measure.resident_bytes(target.pid) / 1e6,
    }
    for mode, results in floor.items():
        row[f"{mode}_ms"] = statistics.median(each["cpu_ns"] for each in results) / 1e6
        row[f"{mode}_calls"] = results[0]["calls"]
        row[f"x_{mode}"] = mine.cpu_ms / row[f"{mode}_ms"]
    row.update(rendering(text))
    return row


def rendering(text: str) -> dict[str, float]:
    """Compare with prometheus-client in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.rendering", file.name],
            capture_output=True, text=True, check=True, cwd=HERE.parent,
        )  # fmt: skip
    answer = json.loads(done.stdout)
    return {
        "render_ms": answer["ours_ms"],
        "client_ms": answer["client_ms"],
        "client_writing_ms": answer["client_writing_ms"],
        "x_client": answer["client_ms"] / answer["ours_ms"],
    }


@contextlib.contextmanager
def other_exporter(command: str, url: str) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """Start any other exporter; its process id and a scrape of it."""

    def answer() -> Callable[[], bytes] | None:
        scrape = scraper(url)
        with contextlib.suppress(OSError, AssertionError):
            scrape()
            return scrape
        return None

    with (
        tempfile.TemporaryDirectory() as folder,
        daemon(shlex.split(command), Path(folder) / "log", dict(os.environ)) as process,
    ):
        yield process.pid, until(answer, f"{url} answers")


def compile_c(name: str, folder: Path) -> Path:
    """Build one of the C programs beside this file."""
    program = folder / name
    subprocess.run(["cc", "-O2", "-o", program, HERE / f"{name}.c"], check=True)
    return program


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per tree and number of jobs."""
    with tempfile.TemporaryDirectory() as folder:
        program = compile_c("readers", Path(folder))
        for kind in options.tree:
            for jobs in options.jobs:
                with trees.make(kind, jobs) as tree:
                    yield {"jobs": jobs, **one(options, tree, program, jobs)}


def one(options: argparse.Namespace, tree: trees.Tree, program: Path, jobs: int) -> dict[str, Any]:
    """Measure on one tree."""
    scrapes = max(4, min(25, 2000 // jobs))
    cgroupfs = f"--path.cgroupfs={tree.cgroupfs}"
    everything = EVERYTHING if options.everything else ()
    with exporter.running(*JOBS_ALONE, cgroupfs, *everything, *options.flag) as target:
        until(
            lambda: (
                (target.scrape().value("batchjob_jobs", manager="slurm") or 0) >= jobs
                and len(target.scrape().series("batchjob_job_info")) >= jobs
            ),
            f"all {jobs} jobs seen",
            timeout=60,
            interval=0.5,
        )
        row = measured(target, tree, program, scrapes)
    if options.other:
        with other_exporter(options.other, options.other_url) as (pid, scrape):
            costs = [cost(pid, scrape, scrapes, tree.stir) for _ in range(TURNS)]
            row["other_ms"] = median(costs).cpu_ms
    return row


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    columns = list(rows[0])
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(shown(row[column]) for column in columns) + " |"


def shown(value: Any) -> str:
    """Three significant digits, and whole numbers as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--tree", choices=trees.KINDS, nargs="+", default=["v1", "copy"])
    parser.add_argument("--everything", action="store_true", help="all groups of metrics")
    parser.add_argument("--flag", action="append", default=[], help="one more for our exporter")
    parser.add_argument("--other", default="", help="command line of another exporter")
    parser.add_argument("--other-url", default="", help="where it answers")
    rows = list(run(parser.parse_args()))
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
