"""How fast job records are written, and how fast a database of many answers.

    python -m benchmarks.ingest write                # 1,000,000 jobs
    python -m benchmarks.ingest write --quick        # 100,000
    python -m benchmarks.ingest read --jobs 10000000 --database /var/tmp/many.db

`write`: records through the store, beside raw sqlite3 executemany of the same rows: one of `job`
and one of `job_node` for each job; the memory used meanwhile. `read`: makes the database unless it
is there, and times the server's questions. Its daily sums have every user on every day.
"""

import argparse
import functools
import itertools
import resource
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterAccount, ClusterLogin
from batchjob_stats_db.database.engine import parse_url, reader_engine, writer_engine
from batchjob_stats_db.database.record_rows import scheduler_columns
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY, month_of
from batchjob_stats_db.measure.rollup import add_waits, roll_up, sum_day, sum_month
from batchjob_stats_db.queries import jobs, nodes, stats, usage
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import After, Page, list_jobs

BEGIN = 1_735_689_600  # 2025-01-01
YEAR = 365 * DAY
USERS, ACCOUNTS, NODES, RUNNING = 2000, 300, 1000, 5000
ENDS = (
    *[JobState.COMPLETED] * 17, JobState.FAILED, JobState.FAILED, JobState.TIMEOUT,
    JobState.CANCELLED,
)  # fmt: skip


def record(number: int, total: int) -> JobRecord:
    """A plausible job; all of them are spread evenly over a year, a third are tasks of arrays."""
    array = number - number % 100 if number // 100 % 3 == 0 else None
    user = (number if array is None else array) * 7919 % USERS
    submit = BEGIN + (number if array is None else array) * YEAR // total
    start = BEGIN + number * YEAR // total + number % 3600
    ended = number < total - RUNNING
    state = ENDS[number % len(ENDS)] if ended else JobState.RUNNING
    length = 60 + number * 104729 % 36_000
    gpus = 1 + number % 4 if number % 10 == 0 else None
    node = f"n{number * 31 % NODES:04}"
    return JobRecord(
        "alpha", str(number), submit, state, state.value, "sacct",
        record_id=str(number), user=f"user{user:04}", uid=10_000 + user, group="users",
        account=f"account{user % ACCOUNTS:03}", partition="gpu" if gpus else "cpu", qos="normal",
        name=f"job-{number % 50}", priority=1000, eligible_time=submit, start_time=start,
        end_time=start + length if ended else None, elapsed_seconds=length if ended else None,
        time_limit_seconds=86_400, exit_code=0, exit_signal=0, requested_cpus=4,
        requested_memory_bytes=8 << 30, requested_nodes=1,
        requested_resources="cpu=4,mem=8G,node=1", allocated_gpus=gpus,
        allocated_cpus=4, allocated_memory_bytes=8 << 30, allocated_nodes=1,
        allocated_resources="billing=4,cpu=4,mem=8G,node=1", node_list=node,
        nodes=(NodeShare(node),), submit_line="sbatch job.sh", work_dir=f"/home/user{user:04}/run",
        user_cpu_seconds=length * 3.5, system_cpu_seconds=length * 0.1,
        array_jobid="" if array is None else str(array),
        array_index=None if array is None else number % 100,
    )  # fmt: skip


def used(number: int, job_id: int, job: JobRecord) -> tuple[object, ...] | None:
    """What it was measured to use; one in twenty was not."""
    if number % 20 == 19:
        return None
    until = job.end_time or BEGIN + YEAR
    seconds, share = until - (job.start_time or 0), number * 37 % 101 / 100
    busy = None if job.allocated_gpus is None else share if number % 70 else 0.0
    return (
        job_id, "prometheus", until, until, 1 + seconds // 30, 0, 1, 1.0, "",
        seconds * 3.9 * share, seconds * 0.1 * share,
        int((8 << 30) * share), int((8 << 30) * share), (4 << 30) * share, number % 977 << 20,
        job.allocated_gpus, busy, seconds * 40.0 * share, seconds * 20.0,
    )  # fmt: skip


def batched(total: int, size: int) -> Iterator[tuple[JobRecord, ...]]:
    numbers = iter(range(total))
    while piece := list(itertools.islice(numbers, size)):
        yield tuple(record(number, total) for number in piece)


def empty(path: Path) -> sa.Engine:
    engine = writer_engine(parse_url(f"sqlite:///{path}"), create=True)
    migrate(engine)
    return engine


COLUMNS = [column.name for column in schema.job.columns if column.name != "id"]
INSERT = f"INSERT INTO job ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
NODE = "INSERT INTO job_node (job_id, node, cluster, start_time) VALUES (?, ?, 'alpha', ?)"
USAGE = (
    "INSERT INTO job_usage (job_id, source, measured_time, until_time, samples, dropped_series, "
    "nodes, coverage, caveats, user_cpu_seconds, system_cpu_seconds, memory_peak_bytes, "
    "memory_peak_node_bytes, memory_average_bytes, io_read_bytes, gpus, gpu_utilization_ratio, "
    "energy_host_active_joules, energy_host_idle_joules) "
    f"VALUES ({', '.join('?' * 19)})"
)


def raw(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def write(total: int, folder: Path) -> None:
    engine = empty(folder / "store.db")
    store = Store(engine, "alpha", clock=lambda: BEGIN + YEAR)
    spent = {"the store": 0.0, "raw executemany": 0.0}
    for count, batch in enumerate(batched(total, 5000)):
        begun = time.perf_counter()
        store.write(Batch(batch, (), str(count), 0), "benchmark")
        spent["the store"] += time.perf_counter() - begun
    engine.dispose()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    empty(folder / "raw.db").dispose()
    connection = raw(folder / "raw.db")
    first = 1
    for batch in batched(total, 5000):
        rows = [(*scheduler_columns(job), 0, "", None) for job in batch]
        shares = [(first + n, job.nodes[0].node, job.start_time) for n, job in enumerate(batch)]
        first += len(batch)
        begun = time.perf_counter()
        connection.execute("BEGIN")
        connection.executemany(INSERT, rows)
        connection.executemany(NODE, shares)
        connection.execute("COMMIT")
        spent["raw executemany"] += time.perf_counter() - begun
    connection.close()
    print(f"{total} jobs: a row of {len(COLUMNS)} columns in job and one in job_node for each")
    for what, seconds in spent.items():
        print(f"  {what:16} {2 * total / seconds:9,.0f} rows/s = {total / seconds:9,.0f} jobs/s")
    print(f"  peak memory of the process while the store wrote: {memory:.0f} MB")


def make(total: int, path: Path) -> None:
    """The database of `read`: indexes are made after the rows, which is three times as fast."""
    begun = time.perf_counter()
    empty(path).dispose()
    connection = raw(path)
    indexes = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    secondary = connection.execute(indexes).fetchall()
    for name, _ in secondary:
        connection.execute(f"DROP INDEX {name}")
    connection.execute("INSERT INTO cluster VALUES ('alpha', 0)")
    first = 1
    for batch in batched(total, 20_000):
        connection.execute("BEGIN")
        connection.executemany(INSERT, [(*scheduler_columns(job), 0, "", None) for job in batch])
        connection.executemany(
            NODE, [(first + n, job.nodes[0].node, job.start_time) for n, job in enumerate(batch)]
        )
        usage = (used(first + n - 1, first + n, job) for n, job in enumerate(batch))
        connection.executemany(USAGE, [row for row in usage if row])
        connection.execute("COMMIT")
        first += len(batch)
    for _, statement in secondary:
        connection.execute(statement)
    connection.execute("ANALYZE")
    connection.close()
    print(f"  made in {time.perf_counter() - begun:.0f} s, {path.stat().st_size / 1e9:.1f} GB")


def by_user(db: sa.Connection, sums: schema.Sums, day: int) -> None:
    """A row for every user; of emissions, by two providers."""
    count = len(sums.columns)
    numbers = [float(n) for n in range(USERS + count)]
    marks = ", ".join("?" * len(sums.by_user.columns))
    rows = [
        ("alpha", day, f"account{n % ACCOUNTS:03}", f"user{n:04}", *key, *numbers[n : n + count])
        for n in range(USERS)
        for key in ([("owid",), ("rte",)] if sums.keys else [()])
    ]
    db.exec_driver_sql(f"INSERT INTO {sums.by_user.name} VALUES ({marks})", rows)


def roll(path: Path) -> None:
    """Sums of every user for every day; then a few days as the poller makes them."""
    engine = writer_engine(parse_url(f"sqlite:///{path}"))
    with engine.begin() as db:
        if db.execute(sa.select(schema.daily_usage.c.day)).first():
            return
        days = range(BEGIN, BEGIN + YEAR, DAY)
        for day in days:
            for sums in schema.SUMS:
                by_user(db, sums, day)
            sum_day(db, "alpha", day)
            add_waits(db, "alpha", day)
        for day in days:
            if day == month_of(day):
                sum_month(db, "alpha", day)
        db.execute(sa.text("ANALYZE"))
    days = range(BEGIN + 100 * DAY, BEGIN + 105 * DAY, DAY)
    begun = time.perf_counter()
    for day in days:
        with engine.begin() as db:
            roll_up(db, "alpha", day, BEGIN + YEAR)
    print(f"  daily sums: {(time.perf_counter() - begun) / len(days):.2f} s a day")
    engine.dispose()


def of_all_users(db: sa.Connection, end: int) -> dict[str, Callable[[], object]]:
    """Sums by user over windows of several lengths, and of fewer columns."""
    windows = {
        "a year": (BEGIN, end),
        "a year and odd days": (BEGIN + 3 * DAY, end - 3 * DAY),
        "30 days": (end - 30 * DAY, end),
        "30 days of two months": (end - 50 * DAY, end - 20 * DAY),
        "7 days": (end - 7 * DAY, end),
    }
    month = windows["30 days"]
    return {
        **{
            f"by user, {name}": functools.partial(
                usage.sum_usage, db, EVERYTHING, ["username"], *window
            )
            for name, window in windows.items()
        },
        "by user, 30 days, failed jobs": lambda: usage.sum_usage(
            db, EVERYTHING, ["username"], *month, columns=["jobs_ended", "jobs_failed"]
        ),
        "grams by user, a year": lambda: usage.sum_emissions(
            db, EVERYTHING, ["username"], *windows["a year"]
        ),
        "grams by user, 30 days": lambda: usage.sum_emissions(db, EVERYTHING, ["username"], *month),
    }


def read(total: int, path: Path) -> None:
    print(f"{total} jobs, {USERS} users, {ACCOUNTS} accounts, {NODES} nodes")
    if not path.exists():
        make(total, path)
    roll(path)
    engine = reader_engine(parse_url(f"sqlite:///{path}"))
    user = Access((ClusterLogin("alpha", "user0042"),))
    member = Access((ClusterLogin("alpha", "user0042"),), (ClusterAccount("alpha", "account042"),))
    end = BEGIN + YEAR
    month = (end - 30 * DAY, end)
    with engine.connect() as db:
        page = list_jobs(db, EVERYTHING, page=Page(50)).rows
        middle = After(end - 100 * DAY, 0, "started")
        questions: dict[str, Callable[[], object]] = {
            "a user's newest 50": lambda: list_jobs(db, user, page=Page(50)),
            "the same, 100 days back": lambda: list_jobs(db, user, page=Page(50, middle)),
            "a coordinator's newest 50": lambda: list_jobs(db, member, page=Page(50)),
            "everybody's newest 50": lambda: list_jobs(db, EVERYTHING, page=Page(50)),
            "an account's newest 50": lambda: list_jobs(
                db, EVERYTHING, Filter("alpha", account="account042"), page=Page(50)
            ),
            "a node's newest 50": lambda: list_jobs(
                db, EVERYTHING, Filter("alpha", node="n0500"), page=Page(50)
            ),
            "a user's failed jobs, newest 50": lambda: list_jobs(
                db, user, Filter("alpha", states=("FAILED",)), page=Page(50)
            ),
            "running now, 100": lambda: list_jobs(db, EVERYTHING, Filter(running=True)),
            "a user's, running now": lambda: list_jobs(db, user, Filter(running=True)),
            "nodes with jobs": lambda: nodes.busy_nodes(db, EVERYTHING, "alpha"),
            "unfinished, by state": lambda: stats.unfinished_by_state(db, EVERYTHING),
            "a job by id": lambda: jobs.find_jobs(db, EVERYTHING, page[7]["jobid"]),
            "a user's year by day": lambda: usage.sum_usage(db, user, ["day"], BEGIN, end),
            "an account's year by user": lambda: usage.sum_usage(
                db, EVERYTHING, ["username"], BEGIN, end, cluster="alpha", account="account042"
            ),
            "by account, 30 days": lambda: usage.sum_usage(
                db, EVERYTHING, ["account"], *month, cluster="alpha"
            ),
            "by account, 30 days of two months": lambda: usage.sum_usage(
                db, EVERYTHING, ["account"], end - 50 * DAY, end - 20 * DAY, cluster="alpha"
            ),
            "by account, a year and odd days": lambda: usage.sum_usage(
                db, EVERYTHING, ["account"], BEGIN + 3 * DAY, end - 3 * DAY, cluster="alpha"
            ),
            "grams by account, a year": lambda: usage.sum_emissions(
                db, EVERYTHING, ["account"], BEGIN, end, cluster="alpha"
            ),
            "by day, 30 days": lambda: usage.sum_usage(
                db, EVERYTHING, ["day"], *month, cluster="alpha"
            ),
            "by day, a year": lambda: usage.sum_usage(
                db, EVERYTHING, ["day"], BEGIN, end, cluster="alpha"
            ),
            "by account, a year": lambda: usage.sum_usage(
                db, EVERYTHING, ["account"], BEGIN, end, cluster="alpha"
            ),
            **of_all_users(db, end),
            "accounts that had jobs, 30 days": lambda: stats.accounts(db, EVERYTHING, *month),
            "accounts that had jobs, a year": lambda: stats.accounts(db, EVERYTHING, BEGIN, end),
        }
        for what, question in questions.items():
            times, busy = [], []
            for _ in range(20):
                begun, worked = time.perf_counter(), time.process_time()
                question()
                times.append(1000 * (time.perf_counter() - begun))
                busy.append(1000 * (time.process_time() - worked))
            print(
                f"  {what:34} median {statistics.median(times):8.2f} ms"
                f" (CPU time {statistics.median(busy):8.2f} ms), first {times[0]:8.2f} ms"
            )
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="100,000 jobs")
    parser.add_argument("--database", type=Path, default=Path("/var/tmp/batchjob-many.db"))
    given = parser.parse_args()
    if given.quick:
        given.jobs = 100_000
    if given.what == "read":
        read(given.jobs, given.database)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(given.jobs, Path(folder))


if __name__ == "__main__":
    main()
