"""A scrape succeeds with all other jobs complete, however files and directories are damaged."""

import itertools
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batchjob.quantities.job import METRIC_GROUPS
from batchjob_exporter.exposition import render
from collectors.host import Host
from collectors.jobs.collector import JobsCollector, JobsOptions

TREES = (
    "slurm-22.05-v1-05-multistep-2nodes-gpu",
    "slurm-24.11-v2-r3-b",
    "openpbs-23.06-v1-03-array-subjobs",
)
QUICK_ROUNDS, LONG_ROUNDS = 40, 1000  # rounds per tree
MOST_AT_ONCE = 12

Undo = Callable[[], None]
Rewrite = Callable[[random.Random, bytes], bytes]

REWRITES: tuple[Rewrite, ...] = (
    lambda rng, text: b"",
    lambda rng, text: text[: rng.randrange(len(text) + 1)],
    lambda rng, text: rng.randbytes(rng.randrange(1, 5000)),
    lambda rng, text: text + text,
    lambda rng, text: text.replace(b"\n", b""),
    lambda rng, text: re.sub(rb"\d+", b"-1", text),
    lambda rng, text: re.sub(rb"\d+", b"9" * 400, text),
    lambda rng, text: re.sub(rb"\d+", b"nan", text),
    lambda rng, text: re.sub(rb"\d+", b"\xd9\xa3", text),  # a digit of another script
    lambda rng, text: text.replace(b" ", b""),
    lambda rng, text: b"\n".join(reversed(text.split(b"\n"))),
    lambda rng, text: b"\0" * 100_000,
)


def rewrite(rng: random.Random, file: Path) -> Undo:
    """Change a file's text in place, so that kept descriptors see it."""
    assert not file.is_symlink()
    before = file.read_bytes()
    file.write_bytes(rng.choice(REWRITES)(rng, before))

    def restore() -> None:
        file.write_bytes(before)

    return restore


def remove(_chance: random.Random, path: Path) -> Undo:
    """Move a file or a directory with its content away."""
    outside = next(each for each in path.parents if each.name in TREES).parent
    hidden = Path(tempfile.mkdtemp(prefix="aside-", dir=outside)) / path.name
    path.rename(hidden)

    def restore() -> None:
        hidden.rename(path)
        hidden.parent.rmdir()

    return restore


def become_directory(rng: random.Random, file: Path) -> Undo:
    """Replace a file by a directory."""
    undo = remove(rng, file)
    file.mkdir()

    def restore() -> None:
        file.rmdir()
        undo()

    return restore


def damage(rng: random.Random, paths: list[Path]) -> list[Undo]:
    """Damage a few of the paths; return the functions that undo it, last first."""
    undo: list[Undo] = []
    for _ in range(rng.randint(1, MOST_AT_ONCE)):
        path = rng.choice(paths)
        if path.is_symlink() or path.is_dir():  # /proc/<pid>/exe leads to a program of this machine
            undo.append(remove(rng, path))
        elif path.is_file():
            undo.append(rng.choice((rewrite, rewrite, remove, become_directory))(rng, path))
    return undo[::-1]


class Scraped:
    """A collector over a copy of a recorded machine, without threads, with a simulated clock."""

    def __init__(self, recorded: Host) -> None:
        self._ticks = itertools.count(0.0, 100.0)  # everything is due at each scan
        self._now = 0.0
        host = replace(recorded, monotonic=lambda: self._now)
        self.collector = JobsCollector(host, JobsOptions(metrics=tuple(METRIC_GROUPS)))

    def scan(self) -> None:
        """Find jobs and read their processes."""
        self._now = next(self._ticks)
        self.collector.update()

    def scrape(self) -> dict[str, list[str]]:
        """Samples by job id; a series that is there twice is a failure."""
        lines = render(self.collector.collect()).decode().splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        series = [line.rpartition(" ")[0] for line in samples]
        assert len(series) == len(set(series))
        jobs: dict[str, list[str]] = {}
        for line in samples:
            if match := re.search(r'jobid="([^"]*)"', line):
                jobs.setdefault(match[1], []).append(line)
        return jobs


@pytest.fixture
def machine(tree, request) -> Iterator[tuple[Scraped, Path]]:
    """The collector, and the copy of the tree that it reads."""
    recorded = tree(request.param, copy=True)
    scraped = Scraped(recorded)
    yield scraped, Path(recorded.cgroupfs).parents[2]
    scraped.collector.stop()


def files_and_directories(root: Path, pattern: str) -> list[Path]:
    """All below the directories that match."""
    return [path for top in root.glob(pattern) for path in (top, *top.rglob("*"))]


def run_rounds(machine: tuple[Scraped, Path], rounds: int, seed: str) -> None:
    """Damage, scan, damage again, scrape, and repair; finally all jobs are shown as before."""
    scraped, root = machine
    rng = random.Random(seed)
    paths = files_and_directories(root, "sys/fs/cgroup/*") + files_and_directories(root, "proc/*")
    scraped.scan()
    before = scraped.scrape()
    assert before
    for _ in range(rounds):
        undo = damage(rng, paths)
        if rng.random() < 0.3:
            scraped.scan()
            undo = damage(rng, paths) + undo
        scraped.scrape()
        for each in undo:
            each()
    scraped.scan()
    scraped.scan()
    assert scraped.scrape().keys() == before.keys()


@pytest.mark.parametrize("machine", TREES, indirect=True)
def test_scrapes_survive_any_damage(machine, request) -> None:
    """Anything may be wrong anywhere below the cgroup mount and /proc."""
    run_rounds(machine, QUICK_ROUNDS, request.node.name)


@pytest.mark.parametrize("machine", TREES, indirect=True)
def test_damage_to_one_job_leaves_all_others_complete(machine, request) -> None:
    """None of their samples is missing or different."""
    scraped, _ = machine
    rng = random.Random(request.node.name)
    scraped.scan()
    before = scraped.scrape()
    directories = {
        holder.name.jobid: [Path(each) for each in holder.directories]
        for holder in scraped.collector.holders()
    }
    assert len(directories) > 1
    for _ in range(QUICK_ROUNDS):
        job = rng.choice(sorted(directories))
        undo = damage(rng, [p for top in directories[job] for p in (top, *top.rglob("*"))])
        after = scraped.scrape()
        for each in undo:
            each()
        for other in directories.keys() - {job}:
            assert after[other] == before[other]


@pytest.mark.e2e
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("machine", TREES, indirect=True)
def test_scrapes_survive_damage_for_long(machine, seed, request) -> None:
    """The same for thousands of rounds."""
    run_rounds(machine, LONG_ROUNDS, request.node.name)
