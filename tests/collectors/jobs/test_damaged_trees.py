"""Whatever becomes of files and directories, a scrape succeeds, with all other jobs complete."""

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
QUICK, LONG = 40, 1000  # rounds per tree
MOST_AT_ONCE = 12

Undo = Callable[[], None]
Rewrite = Callable[[random.Random, bytes], bytes]

REWRITES: tuple[Rewrite, ...] = (
    lambda chance, text: b"",
    lambda chance, text: text[: chance.randrange(len(text) + 1)],
    lambda chance, text: chance.randbytes(chance.randrange(1, 5000)),
    lambda chance, text: text + text,
    lambda chance, text: text.replace(b"\n", b""),
    lambda chance, text: re.sub(rb"\d+", b"-1", text),
    lambda chance, text: re.sub(rb"\d+", b"9" * 400, text),
    lambda chance, text: re.sub(rb"\d+", b"nan", text),
    lambda chance, text: re.sub(rb"\d+", b"\xd9\xa3", text),  # a digit of another script
    lambda chance, text: text.replace(b" ", b""),
    lambda chance, text: b"\n".join(reversed(text.split(b"\n"))),
    lambda chance, text: b"\0" * 100_000,
)


def rewrite(chance: random.Random, file: Path) -> Undo:
    """Change a file's text in place, so that kept descriptors see it."""
    assert not file.is_symlink()
    before = file.read_bytes()
    file.write_bytes(chance.choice(REWRITES)(chance, before))

    def back() -> None:
        file.write_bytes(before)

    return back


def remove(_chance: random.Random, path: Path) -> Undo:
    """Take a file or a directory with all in it away."""
    outside = next(each for each in path.parents if each.name in TREES).parent
    hidden = Path(tempfile.mkdtemp(prefix="aside-", dir=outside)) / path.name
    path.rename(hidden)

    def back() -> None:
        hidden.rename(path)
        hidden.parent.rmdir()

    return back


def become_directory(chance: random.Random, file: Path) -> Undo:
    """A directory where a file was."""
    undo = remove(chance, file)
    file.mkdir()

    def back() -> None:
        file.rmdir()
        undo()

    return back


def damage(chance: random.Random, paths: list[Path]) -> list[Undo]:
    """Do something to a few of the paths; what undoes it, last first."""
    undo: list[Undo] = []
    for _ in range(chance.randint(1, MOST_AT_ONCE)):
        path = chance.choice(paths)
        if path.is_symlink() or path.is_dir():  # /proc/<pid>/exe leads to a program of this machine
            undo.append(remove(chance, path))
        elif path.is_file():
            undo.append(chance.choice((rewrite, rewrite, remove, become_directory))(chance, path))
    return undo[::-1]


class Scraped:
    """A collector over a copy of a recorded machine, without threads, and with a clock of ours."""

    def __init__(self, recorded: Host) -> None:
        self._ticks = itertools.count(0.0, 100.0)  # at each look everything is due
        self._now = 0.0
        host = replace(recorded, monotonic=lambda: self._now)
        self.collector = JobsCollector(host, JobsOptions(metrics=tuple(METRIC_GROUPS), steps=True))

    def look(self) -> None:
        """Find jobs and look at processes."""
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
    made = Scraped(recorded)
    yield made, Path(recorded.cgroupfs).parents[2]
    made.collector.stop()


def files_and_directories(root: Path, pattern: str) -> list[Path]:
    """All below the directories that match."""
    return [path for top in root.glob(pattern) for path in (top, *top.rglob("*"))]


def run(machine: tuple[Scraped, Path], rounds: int, seed: str) -> None:
    """Damage, look, damage again, scrape, and repair; in the end all is as it was."""
    scraped, root = machine
    chance = random.Random(seed)
    paths = files_and_directories(root, "sys/fs/cgroup/*") + files_and_directories(root, "proc/*")
    scraped.look()
    before = scraped.scrape()
    assert before
    for _ in range(rounds):
        undo = damage(chance, paths)
        if chance.random() < 0.3:
            scraped.look()
            undo = damage(chance, paths) + undo
        scraped.scrape()
        for each in undo:
            each()
    scraped.look()
    scraped.look()
    assert scraped.scrape().keys() == before.keys()


@pytest.mark.parametrize("machine", TREES, indirect=True)
def test_scrapes_survive_any_damage(machine, request) -> None:
    """Anything may be wrong anywhere below the cgroup mount and /proc."""
    run(machine, QUICK, request.node.name)


@pytest.mark.parametrize("machine", TREES, indirect=True)
def test_damage_to_one_job_leaves_all_others_complete(machine, request) -> None:
    """Not a sample of theirs is missing, or another one."""
    scraped, _ = machine
    chance = random.Random(request.node.name)
    scraped.look()
    before = scraped.scrape()
    directories = {
        holder.name.jobid: [Path(each) for each in holder.directories]
        for holder in scraped.collector.holders()
    }
    assert len(directories) > 1
    for _ in range(QUICK):
        job = chance.choice(sorted(directories))
        undo = damage(chance, [p for top in directories[job] for p in (top, *top.rglob("*"))])
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
    run(machine, LONG, request.node.name)
