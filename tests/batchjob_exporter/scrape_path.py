"""The files and functions that a scrape crosses."""

import sys
from collections.abc import Callable
from pathlib import Path

from batchjob_exporter import exposition
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.self_metrics import self_families_reader
from tests.collectors.jobs.nodes import Node

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("batchjob", "batchjob_exporter", "collectors")


def crossed(call: Callable[[], object]) -> set[tuple[str, str]]:
    """File and qualified name of each function of the packages that a call crosses."""
    codes = set()
    previous = sys.getprofile()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code))
    try:
        call()
    finally:
        sys.setprofile(previous)
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(REPOSITORY):
            name = path.relative_to(REPOSITORY)
            if name.parts[0] in PACKAGES:
                found.add((name.as_posix(), code.co_qualname))
    return found


def crossed_by_scrape(directory: Path) -> set[tuple[str, str]]:
    """What the second scrape of a node with one job crosses, from the collectors to the text."""
    node = Node(directory)
    node.add_process(10)
    node.add_job(pids=[10])
    jobs = node.collector()
    jobs.update()
    exporter = Exporter({"jobs": jobs}, self_families_reader(process_metrics=True))
    try:
        exposition.render(exporter.collect())
        return crossed(lambda: exposition.render(exporter.collect()))
    finally:
        jobs.stop()
