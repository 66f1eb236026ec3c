"""The load of a poll on slurmdbd, from the slow query log of its MariaDB, for two table sizes.

The jobs are inserted into slurmdbd's tables as it would do; Slurm's own programs read them.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import slurm
from tests.e2e.test_stats_db_slurm import StatsDbCommand

pytestmark = pytest.mark.e2e

RUNNING_JOBS = 300  # in slurmdbd's job table
MAX_EXAMINED_PER_SENT_ROW = 10

INSERT_JOBS = """
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
INSERT_STEPS = """
insert into {name}_step_table (
    job_db_inx, exit_code, id_step, step_het_comp, step_name, nodelist, nodes_alloc, node_inx,
    state, time_start, time_end, task_cnt, tres_alloc)
select job_db_inx, 0, {step}, 4294967294, 'train', 'n001', 1, 0, 3, time_start, time_end, 1, '1=4'
from {name}_job_table where id_job > {first} and id_job <= {first} + {number};
"""


class PollCost(NamedTuple):
    """The queries of slurmdbd to MariaDB during one poll."""

    queries: int
    rows_sent: int
    rows_examined: int


class SlurmdbdDatabase:
    """Slurmdbd's tables in MariaDB, and the cost of its queries."""

    def __init__(self, cluster: slurm.Cluster) -> None:
        self._cluster = cluster
        self._next_jobid = 1_000_000
        self.sql("set global log_output = 'TABLE'; set global long_query_time = 0")

    def sql(self, statements: str) -> list[list[str]]:
        socket = self._cluster.root / "mysql/socket"
        text = self._cluster.command(
            "mariadb", "--no-defaults", f"--socket={socket}", "--batch", "--skip-column-names",
            "--execute", statements, "slurm_acct_db",
        )  # fmt: skip
        return [line.split("\t") for line in text.splitlines()]

    def add_jobs(
        self,
        job_count: int,
        end_interval: int,
        *,
        ended: bool = True,
        newest_end_age: int = 0,
        with_steps: bool = True,
    ) -> None:
        """Insert running jobs or jobs ended `end_interval` s apart up to `newest_end_age` s ago."""
        now, first_jobid = int(time.time()), self._next_jobid
        self._next_jobid += job_count
        end_time = f"({now} - 5 - {newest_end_age} - seq * {end_interval})"
        values = {"name": self._cluster.name, "first": first_jobid, "number": job_count, "now": now}
        state, time_end_column = ("if(seq mod 10 = 0, 5, 3)", end_time) if ended else ("1", "0")
        self.sql(INSERT_JOBS.format(**values, end=end_time, ends=time_end_column, state=state))
        for step in (-5, 0) if with_steps else ():
            self.sql(INSERT_STEPS.format(**values, step=step))
        self.sql(f"analyze table {self._cluster.name}_job_table, {self._cluster.name}_step_table")

    @contextlib.contextmanager
    def record_cost(self, costs: list[PollCost]) -> Iterator[None]:
        self.sql("truncate mysql.slow_log; set global slow_query_log = 1")
        yield
        self.sql("set global slow_query_log = 0")
        (row,) = self.sql(
            "select count(*), ifnull(sum(rows_sent), 0), ifnull(sum(rows_examined), 0)"
            " from mysql.slow_log where db = 'slurm_acct_db' and sql_text like '%_table%'"
            " and user_host like 'slurm%' and sql_text not like '%truncate%'"
        )
        costs.append(PollCost(*(int(float(cell)) for cell in row)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    why_not = slurm.missing(cgroup=1)
    if why_not:
        pytest.skip(why_not)
    with slurm.cluster(cgroup=1, nodes=1) as running_cluster:
        yield running_cluster


@pytest.fixture(scope="module")
def costs(
    cluster: slurm.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[PollCost]]:
    """By table size: a first poll of the last hour, and a second one with a minute's jobs."""
    database = SlurmdbdDatabase(cluster)
    database.add_jobs(RUNNING_JOBS, end_interval=1, ended=False)
    costs_by_job_count: dict[int, list[PollCost]] = {}
    jobs_in_table = 0
    for job_count in (50_000, 200_000):
        database.add_jobs(job_count - jobs_in_table, end_interval=20)
        jobs_in_table = job_count
        stats_db = StatsDbCommand(tmp_path_factory.mktemp("stats_db"), cluster)
        stats_db("migrate")
        costs_by_job_count[job_count] = []
        for _ in range(2):
            with database.record_cost(costs_by_job_count[job_count]):
                stats_db("--poll.first", "1h", "--once")
            database.add_jobs(20, end_interval=3)
            jobs_in_table += 20
    return costs_by_job_count


@pytest.mark.parametrize("job_count", [50_000, 200_000])
def test_rows_examined_are_proportional_to_rows_sent(
    costs: dict[int, list[PollCost]], job_count: int
) -> None:
    for cost in costs[job_count]:
        print(job_count, cost)
        assert cost.rows_sent > 20
        assert cost.rows_examined <= MAX_EXAMINED_PER_SENT_ROW * cost.rows_sent


def test_pending_jobs_are_stored_with_their_reason(cluster: slurm.Cluster, tmp_path: Path) -> None:
    """Held, delayed and dependent jobs, before they are eligible in accounting."""
    held = cluster.submit("alice", "sleep 1", "--hold")
    delayed = cluster.submit("alice", "sleep 1", "--begin=now+1hour")
    dependent = cluster.submit("bob", "sleep 1", f"--dependency=afterok:{held}")
    array = cluster.submit("carol", "sleep 1", "--hold", "--array=1-5%2")
    stats_db = StatsDbCommand(tmp_path, cluster)
    stats_db("migrate")
    stats_db("--once")
    rows = {row["jobid"]: row for row in stats_db.rows("job")}
    assert {job: rows[job]["state"] for job in (held, delayed, dependent, array)} == dict.fromkeys(
        (held, delayed, dependent, array), "PENDING"
    )
    assert rows[held]["reason"] == "JobHeldUser"
    assert rows[delayed]["reason"] == "BeginTime"
    assert rows[delayed]["eligible_time"] > time.time() + 3000
    assert rows[dependent]["reason"] == "Dependency"
    assert held in rows[dependent]["dependencies"]
    assert rows[array]["array_jobid"] == array
    assert rows[held]["start_time"] is None
    assert (rows[held]["requested_cpus"], rows[held]["allocated_cpus"]) == (1, None)
    cluster.command("scancel", held, delayed, dependent, array)
    stats_db("--once")
    final_states = {row["jobid"]: row["state"] for row in stats_db.rows("job")}
    assert {final_states[job] for job in (held, delayed, dependent)} == {"CANCELLED"}
    assert len(stats_db.rows("job")) == len(rows)
