"""Rows of SQLite, for threads with connections of their own."""

import subprocess
import sys
import threading

from batchjob_stats_db.fetching import turn

_WITHOUT_LOCKS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import sqlalchemy as sa
from batchjob_stats_db.engine import parse, reader, writer
from batchjob_stats_db.fetching import one_thread_for_each

print(one_thread_for_each())
url = parse(f"sqlite:///{sys.argv[1]}")
with writer(url, create=True).begin() as db:
    db.execute(sa.text("CREATE TABLE number (n INTEGER)"))
    db.execute(sa.text("INSERT INTO number VALUES (:n)"), [{"n": n} for n in range(1000)])
engine = reader(url, connections=8)

def total(_):
    with engine.connect() as db:
        return sum(row.n for row in db.execute(sa.text("SELECT n FROM number")))

with ThreadPoolExecutor(16) as threads:
    print(set(threads.map(total, range(400))))
"""


def test_connections_that_are_used_by_one_thread_at_a_time_need_no_lock(tmp_path):
    argv = [sys.executable, "-c", _WITHOUT_LOCKS, str(tmp_path / "numbers.db")]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout
    assert said.split() == ["True", "{499500}"]


def test_nobody_waits_long_for_a_turn():
    taken = threading.Event()

    def second():
        with turn():
            taken.set()

    with turn():
        threading.Thread(target=second).start()
        assert taken.wait(10)
