"""Jobs on a real Slurm whose steps end long before them, with a window of 20 s instead of minutes.

The poller runs all the time; at each look, the totals of every job are those of all its steps.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
import yaml

from batchjob_stats_db.admin.migrate import bring_up_to_date
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, reader_engine
from tests.e2e import slurm
from tests.grafana import stack
from tests.helpers.processes import free_ports
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

OVERLAP = 20  # seconds
EXIT_CODES = (1, 126, 127, 128, 137, 139, 254, 255)
SAMPLED_OFTEN = "JobAcctGatherFrequency=task=1\n"
BURN = "python3 -c 'import time\nwhile time.process_time() < {}: pass'"
HOLD = "python3 -c 'import time; held = bytearray(60 << 20); time.sleep(3)'"
STEPS_THEN_SILENCE = f"""
srun {HOLD}
srun {BURN.format(1.5)}
sleep {OVERLAP + 5}
srun true
"""

LONG_IN_FIRST_RUN = f"""
{BURN.format(1)}
touch ~/burnt
[ ${{SLURM_RESTART_COUNT:-0}} -gt 0 ] || sleep 600
"""

Row = Mapping[str, Any]


class Lives(NamedTuple):
    """What was stored of the jobs at each look, and what sacct says of them afterwards."""

    ids: Mapping[str, str]  # kind of job → raw id
    looks: Sequence[tuple[Sequence[Row], Sequence[Row]]]  # rows of jobs and of steps
    sacct: Mapping[str, Sequence[Mapping[str, str]]]  # by raw id: the job's row, then its steps'

    def jobs(self, kind: str) -> list[Row]:
        """The last rows of a job."""
        return [row for row in self.looks[-1][0] if row["jobid"] == self.ids[kind]]

    def steps(self, kind: str) -> dict[str, Row]:
        """The last rows of its steps, by name."""
        ids = {row["id"] for row in self.jobs(kind)}
        return {row["step"]: row for row in self.looks[-1][1] if row["job_id"] in ids}


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    if why_not := slurm.missing(cgroup=1):
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("totals")
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    bring_up_to_date(url)
    config = folder / "stats_db.yml"
    sources = {"sacct": {"overlap": f"{OVERLAP}s"}}
    settings = {
        "db": {"url": str(url)}, "clusters": [{"name": "alpha", "sources": sources}],
        "poll": {"interval": "2s"}, "web": {"listen-address": f"127.0.0.1:{free_ports(1)[0]}"},
    }  # fmt: skip
    config.write_text(yaml.safe_dump(settings))
    with contextlib.ExitStack() as made:
        cluster = made.enter_context(slurm.cluster(cgroup=1, nodes=2, cpus=4, conf=SAMPLED_OFTEN))
        path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
        made.enter_context(
            stack.running_program(
                "batchjob_stats_db", config, inside=cluster.inside(),
                environ={**cluster.environ, "PATH": path},
            )
        )  # fmt: skip
        engine = reader_engine(url)
        made.callback(engine.dispose)
        yield _watch(cluster, engine, _submit(cluster))


def _submit(cluster: slurm.Cluster) -> dict[str, str]:
    """Submit the jobs, and do to them what is done to jobs.

    slurmctld may have the end of a job before that of its last step, which the derived code lacks
    then.
    """
    ids = {
        "resized": cluster.submit(
            "bob", "sleep 3; scontrol update JobId=$SLURM_JOB_ID NumNodes=1; sleep 25", "--nodes=2"
        ),
        "steps": cluster.submit("alice", STEPS_THEN_SILENCE),
        "suspended": cluster.submit("carol", "sleep 60"),
        "step 200": cluster.submit("bob", "srun sh -c 'exit 200'; sleep 2; exit 3"),
        "orphan": cluster.submit("carol", f"{BURN.format(1)} & wait"),
        "requeued": cluster.submit("bob", LONG_IN_FIRST_RUN, "--requeue"),
        "waiting": cluster.submit("bob", "true", "--begin=now+1hour"),
        **{str(code): cluster.submit("alice", f"exit {code}") for code in EXIT_CODES},
    }
    cluster.wait(ids["suspended"], state="RUNNING")
    cluster.command("scontrol", "suspend", ids["suspended"])
    return ids


def _watch(cluster: slurm.Cluster, engine: sa.Engine, ids: Mapping[str, str]) -> Lives:
    looks: list[tuple[Sequence[Row], Sequence[Row]]] = []

    def has_ended() -> bool:
        looks.append(tuple(_rows(engine, table) for table in (schema.job, schema.job_step)))
        return cluster.states()[ids["steps"]] in slurm.FINAL_STATES

    until(lambda: cluster.states()[ids["suspended"]] == "SUSPENDED", "suspension")
    time.sleep(2)
    cluster.command("scancel", ids["suspended"])
    until((cluster.home("bob") / "burnt").exists, "CPU time of the first run")
    cluster.command("scontrol", "requeue", ids["requeued"])
    cluster.wait(ids["requeued"], state="PENDING")
    # Slurm lets a requeued job wait for two minutes.
    cluster.command("scontrol", "update", f"JobId={ids['requeued']}", "StartTime=now")
    until(has_ended, "the end of the job with steps", 120, 1)
    ended = time.monotonic()
    until(lambda: has_ended() and time.monotonic() > ended + 12, "more polls", 60, 1)
    fields = ("State", "ExitCode", "TotalCPU", "TRESUsageInTot")
    ended_ids = [each for kind, each in ids.items() if kind != "waiting"]
    return Lives(ids, looks, {each: cluster.sacct(each, fields) for each in ended_ids})


def _rows(engine: sa.Engine, table: sa.Table) -> list[Row]:
    with engine.connect() as db:
        return [dict(row) for row in db.execute(sa.select(table)).mappings()]


def _seconds(text: str) -> float:
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def test_totals_are_those_of_all_steps_at_every_look(lives: Lives) -> None:
    seen = 0
    for jobs, steps in lives.looks:
        for job in jobs:
            own = [step for step in steps if step["job_id"] == job["id"]]
            if job["cpu_seconds"] is not None:
                seen += 1
                seconds = sum(step["cpu_seconds"] for step in own)
                assert job["cpu_seconds"] == pytest.approx(seconds, abs=0.01), job["jobid"]
                peaks = [step["memory_bytes"] for step in own if step["memory_bytes"]]
                assert job["peak_memory_bytes"] == max(peaks, default=None), job["jobid"]
    assert seen > 20


def test_totals_are_those_of_sacct(lives: Lives) -> None:
    (job,), steps = lives.jobs("steps"), lives.steps("steps")
    assert sorted(steps) == ["0", "1", "2", "batch", "extern"]
    row, *_ = lives.sacct[job["jobid"]]
    assert job["cpu_seconds"] == pytest.approx(_seconds(row["TotalCPU"]), abs=0.01)
    assert job["cpu_seconds"] > 1.5
    assert job["peak_memory_bytes"] == steps["0"]["memory_bytes"] > 60 << 20


@pytest.mark.parametrize("code", EXIT_CODES)
def test_exit_code_is_the_exit_status(lives: Lives, code: int) -> None:
    (job,) = lives.jobs(str(code))
    assert (job["state"], job["exit_code"], job["exit_signal"]) == ("FAILED", code, 0)
    assert lives.steps(str(code))["batch"]["exit_code"] == code
    assert lives.sacct[job["jobid"]][0]["ExitCode"] == f"{code % 128}:0"


def test_exit_code_of_a_step_follows_from_the_derived_one(lives: Lives) -> None:
    (job,), steps = lives.jobs("step 200"), lives.steps("step 200")
    assert (job["exit_code"], job["derived_exit_code"]) == (3, 200)
    assert (steps["batch"]["exit_code"], steps["0"]["exit_code"]) == (3, 200)


def test_parts_of_a_resized_job_follow_one_another(lives: Lives) -> None:
    first, second = sorted(lives.jobs("resized"), key=lambda row: row["submit_time"])
    assert (first["state"], second["state"]) == ("RESIZED", "COMPLETED")
    assert first["end_time"] == second["start_time"]
    assert second["elapsed_seconds"] == second["end_time"] - second["start_time"]
    assert (first["allocated_nodes"], second["allocated_nodes"]) == (2, 1)
    running = [
        row for jobs, _ in lives.looks for row in jobs
        if row["jobid"] == lives.ids["resized"] and row["state"] == "RUNNING"
    ]  # fmt: skip
    assert second["submit_time"] in {row["submit_time"] for row in running}


def test_runs_of_a_requeued_job_have_records_of_their_own(lives: Lives) -> None:
    first, second = sorted(lives.jobs("requeued"), key=lambda row: row["submit_time"])
    assert (first["state"], second["state"]) == ("REQUEUED", "COMPLETED")
    assert first["end_time"] <= second["submit_time"] <= second["start_time"]
    assert min(first["cpu_seconds"], second["cpu_seconds"]) > 0.9


def test_waiting_job_has_its_submit_line(lives: Lives) -> None:
    (job,) = lives.jobs("waiting")
    assert (job["state"], job["start_time"]) == ("PENDING", None)
    assert "--begin=now+1hour" in job["submit_line"]
    assert job["stdout_path"].startswith("/")


def test_job_cancelled_while_suspended_is_recorded(lives: Lives) -> None:
    (job,) = lives.jobs("suspended")
    assert job["state"] == "CANCELLED"
    assert job["end_time"] is not None


def test_cpu_time_of_a_background_process_is_counted(lives: Lives) -> None:
    (job,) = lives.jobs("orphan")
    assert job["cpu_seconds"] > 0.9
