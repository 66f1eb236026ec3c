"""What a poll costs slurmdbd, by the counters of its MariaDB, with tables of two sizes.

The jobs are written into slurmdbd's tables, as it would write them; Slurm's own programs read them.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import slurm
from tests.e2e.test_stats_db_slurm import Poll

pytestmark = pytest.mark.e2e

RUNNING = 300  # in slurmdbd's table
ROWS_EXAMINED_PER_ROW = 10

JOBS = """
insert into {name}_job_table (
    mod_time, account, cpus_req, job_name, id_assoc, id_job, id_resv, id_wckey, id_user, id_group,
    het_job_id, het_job_offset, state_reason_prev, nodelist, nodes_alloc, `partition`, priority,
    state, timelimit, time_submit, time_eligible, time_start, time_end, tres_alloc, tres_req,
    work_dir)
select {now}, 'physics', 1, 'train', 2, {first} + seq, 0, 0, 20001, 20001, 0, 4294967294, 0, 'n001',
    1, 'cpu', 1, {state}, 60, {end} - 600, {end} - 590, {end} - 500, {ends}, '1=4,2=4000,4=1',
    '1=4,2=4000,4=1', '/home/alice'
from seq_1_to_{number};
"""
STEPS = """
insert into {name}_step_table (
    job_db_inx, exit_code, id_step, step_het_comp, step_name, nodelist, nodes_alloc, node_inx,
    state, time_start, time_end, task_cnt, tres_alloc)
select job_db_inx, 0, {step}, 4294967294, 'train', 'n001', 1, 0, 3, time_start, time_end, 1, '1=4'
from {name}_job_table where id_job > {first} and id_job <= {first} + {number};
"""


class Cost(NamedTuple):
    """What slurmdbd asked of MariaDB in one poll."""

    queries: int
    rows_sent: int
    rows_examined: int


class Slurmdbd:
    """Slurmdbd's tables, and what is asked of them."""

    def __init__(self, cluster: slurm.Cluster) -> None:
        self._cluster = cluster
        self._next = 1_000_000
        self.sql("set global log_output = 'TABLE'; set global long_query_time = 0")

    def sql(self, statements: str) -> list[list[str]]:
        socket = self._cluster.root / "mysql/socket"
        text = self._cluster.command(
            "mariadb", "--no-defaults", f"--socket={socket}", "--batch", "--skip-column-names",
            "--execute", statements, "slurm_acct_db",
        )  # fmt: skip
        return [line.split("\t") for line in text.splitlines()]

    def add(
        self, number: int, every: int, *, ended: bool = True, since: int = 0, steps: bool = True
    ) -> None:
        """Jobs, the newest of which ended a moment ago, or so many seconds; or that run."""
        now, first = int(time.time()), self._next
        self._next += number
        end = f"({now} - 5 - {since} - seq * {every})"
        names = {"name": self._cluster.name, "first": first, "number": number, "now": now}
        state, ends = ("if(seq mod 10 = 0, 5, 3)", end) if ended else ("1", "0")
        self.sql(JOBS.format(**names, end=end, ends=ends, state=state))
        for step in (-5, 0) if steps else ():
            self.sql(STEPS.format(**names, step=step))
        self.sql(f"analyze table {self._cluster.name}_job_table, {self._cluster.name}_step_table")

    @contextlib.contextmanager
    def measured(self, costs: list[Cost]) -> Iterator[None]:
        self.sql("truncate mysql.slow_log; set global slow_query_log = 1")
        yield
        self.sql("set global slow_query_log = 0")
        (row,) = self.sql(
            "select count(*), ifnull(sum(rows_sent), 0), ifnull(sum(rows_examined), 0)"
            " from mysql.slow_log where db = 'slurm_acct_db' and sql_text like '%_table%'"
            " and user_host like 'slurm%' and sql_text not like '%truncate%'"
        )
        costs.append(Cost(*(int(float(cell)) for cell in row)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    why_not = slurm.missing(cgroup=1)
    if why_not:
        pytest.skip(why_not)
    with slurm.cluster(cgroup=1, nodes=1) as made:
        yield made


@pytest.fixture(scope="module")
def costs(
    cluster: slurm.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[Cost]]:
    """The first poll of the last hour, and one with a minute's jobs, at 50,000 and 200,000 jobs."""
    dbd = Slurmdbd(cluster)
    dbd.add(RUNNING, every=1, ended=False)
    found: dict[int, list[Cost]] = {}
    total = 0
    for number in (50_000, 200_000):
        dbd.add(number - total, every=20)
        total = number
        poll = Poll(tmp_path_factory.mktemp("stats_db"), cluster)
        poll("migrate")
        found[number] = []
        for _ in range(2):
            with dbd.measured(found[number]):
                poll("--poll.first", "1h", "--once")
            dbd.add(20, every=3)
            total += 20
    return found


@pytest.mark.parametrize("number", [50_000, 200_000])
def test_rows_examined_grow_with_the_answer_and_not_with_the_table(
    costs: dict[int, list[Cost]], number: int
) -> None:
    for cost in costs[number]:
        print(number, cost)
        assert cost.rows_sent > 20
        assert cost.rows_examined <= ROWS_EXAMINED_PER_ROW * cost.rows_sent


def test_jobs_that_wait_are_listed_with_their_reason(
    cluster: slurm.Cluster, tmp_path: Path
) -> None:
    """Held, for later, dependent on another one: before accounting calls them eligible."""
    held = cluster.submit("alice", "sleep 1", "--hold")
    later = cluster.submit("alice", "sleep 1", "--begin=now+1hour")
    after = cluster.submit("bob", "sleep 1", f"--dependency=afterok:{held}")
    array = cluster.submit("carol", "sleep 1", "--hold", "--array=1-5%2")
    poll = Poll(tmp_path, cluster)
    poll("migrate")
    poll("--once")
    rows = {row["jobid"]: row for row in poll.rows("job")}
    assert {job: rows[job]["state"] for job in (held, later, after, array)} == dict.fromkeys(
        (held, later, after, array), "PENDING"
    )
    assert rows[held]["reason"] == "JobHeldUser"
    assert rows[later]["reason"] == "BeginTime"
    assert rows[later]["eligible_time"] > time.time() + 3000
    assert rows[after]["reason"] == "Dependency"
    assert held in rows[after]["dependencies"]
    assert rows[array]["array_jobid"] == array
    assert rows[held]["start_time"] is None
    assert (rows[held]["requested_cpus"], rows[held]["allocated_cpus"]) == (1, None)
    cluster.command("scancel", held, later, after, array)
    poll("--once")
    ended = {row["jobid"]: row["state"] for row in poll.rows("job")}
    assert {ended[job] for job in (held, later, after)} == {"CANCELLED"}
    assert len(poll.rows("job")) == len(rows)
