"""How many questions are answered at a time, and how many of them may be costly."""

import os

import pytest

from batchjob_stats_db.database.engine import parse
from batchjob_stats_server.services import threads_of

SQLITE, POSTGRESQL = parse("sqlite:////var/lib/batchjob/jobs.db"), parse("postgresql://db/jobs")


@pytest.mark.parametrize(
    ("url", "most", "light", "heavy"),
    [
        (SQLITE, 8, 5, 3),  # on two CPUs, which SQLite has to itself
        (SQLITE, 4, 2, 2),
        (SQLITE, 2, 1, 1),
        (SQLITE, 1, 1, 1),
        (POSTGRESQL, 40, 20, 20),
        (POSTGRESQL, 3, 2, 1),
    ],
)
def test_costly_questions_leave_threads_to_others(monkeypatch, url, most, light, heavy):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    threads = threads_of(url, most)
    assert (threads.light, threads.heavy.places()) == (light, heavy)
    assert threads.connections() == light + heavy
