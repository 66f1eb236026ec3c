"""An example site: two clusters, some days of jobs of all kinds, measured and not.

The same seed always makes the same site. Some names are hostile, as users may choose them.
"""

import random
import uuid

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import (
    Account,
    Association,
    Associations,
    JobRecord,
    NodeShare,
    Role,
    StepRecord,
)
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.schema import job
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.measure.job_usage import JobToMeasure, MeasuredUsage
from batchjob_stats_db.measure.node_usage import GpuUsage
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.measure.writer import write_usages
from batchjob_stats_db.timeseries.base import JobWindow

NOW = 1_775_300_000
DAY = 86400
GIB = 1 << 30
HOSTILE_NAME = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
LONG_NAME = "parameter-sweep-" + "lr_0.0001_batch_4096_" * 8

USERS = {
    "alice": "physics",
    "bob": "chemistry",
    "carol": "physics",
    "dave": "climate",
    "a.very.long.login@department.example.org": "chemistry",
}
NAMES = (
    "train", "relax", "postproc", "gromacs-prod", "wrf_eu", "sweep", LONG_NAME, HOSTILE_NAME,
    "", "bash",
)  # fmt: skip
END_STATES = (
    [JobState.COMPLETED] * 14
    + [JobState.FAILED] * 3
    + [JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.CANCELLED, JobState.NODE_FAIL]
)


def make(path, jobs=200):
    """Create the database at `path`, and return tokens of alice and of an admin.

    More jobs have more nodes; about 200 at most run at once, and half as many wait.
    """
    rng = random.Random(20260404)
    engine = writer_engine(parse_url(f"sqlite:///{path}"), create=True)
    migrate(engine)
    for cluster, share in (("alpha", 0.85), ("beta-gpu", 0.15)):
        store = Store(engine, cluster, UsagePolicy(), clock=lambda: NOW)
        records = [_job_record(rng, cluster, number, jobs) for number in range(int(jobs * share))]
        store.write(Batch(tuple(records), (), "", 0), "sacct")
        store.write_associations(_associations(cluster), "sacctmgr")
        with engine.begin() as db:
            rows = db.execute(job.select().where(job.c.cluster == cluster)).mappings().all()
            usages = dict(
                _measured_usage(rng, row) for row in rows if row["start_time"] is not None
            )
            write_usages(db, cluster, "prometheus", usages, UsagePolicy(), NOW)
        with engine.begin() as db:
            for day in due_days(db, cluster, 1000):
                roll_up(db, cluster, day, NOW)
    with engine.begin() as db:
        created_tokens = (
            tokens.create(db, "alice", TokenRole.USER, "laptop", NOW, expiry_time=NOW + 400 * DAY),
            tokens.create(db, "root", TokenRole.ADMIN, "admin", NOW, expiry_time=NOW + 400 * DAY),
        )
    engine.dispose()
    return created_tokens


def add_large_job(path):
    """Add job 49999 of cluster beta-gpu: 64 nodes with 8 GPUs each, four steps."""
    engine = writer_engine(parse_url(f"sqlite:///{path}"))
    names = [f"b{number:03d}" for number in range(1, 65)]
    start, end = NOW - 8 * 3600, NOW - 600
    steps = tuple(
        StepRecord(
            str(number), JobState.COMPLETED, "COMPLETED", "a.out", start + number * 6000,
            start + number * 6000 + 5400, 5400, 0, nodes=64, tasks=64, cpus=64 * 64,
        )
        for number in range(4)
    )  # fmt: skip
    record = JobRecord(
        cluster="beta-gpu", jobid="49999", submit_time=start - 60, state=JobState.COMPLETED,
        state_word="COMPLETED", source="sacct", user="alice", uid=1000, account="physics",
        partition="gpu", name="large", start_time=start, end_time=end, elapsed_seconds=end - start,
        exit_code=0, time_limit_seconds=DAY, allocated_cpus=64 * 64,
        allocated_memory_bytes=64 * 256 * GIB, allocated_gpus=512, allocated_nodes=64,
        node_list=",".join(names), nodes=tuple(NodeShare(name, 64, 256 * GIB, 8) for name in names),
        steps=steps,
    )  # fmt: skip
    Store(engine, "beta-gpu", UsagePolicy(), clock=lambda: NOW).write(
        Batch((record,), (), "", 0), "sacct"
    )
    with engine.begin() as db:
        row = db.execute(job.select().where(job.c.jobid == "49999")).mappings().one()
        usage = dict([_measured_usage(random.Random(1), row)])
        write_usages(db, "beta-gpu", "prometheus", usage, UsagePolicy(), NOW)
    engine.dispose()


def _associations(cluster):
    members = (Association(cluster, account, user, Role.MEMBER) for user, account in USERS.items())
    limits = {"physics": "GrpTRES=cpu=512,gres/gpu=8 MaxWall=2-00:00:00"}
    accounts = (
        Account(cluster, name, "root", limits.get(name, ""))
        for name in dict.fromkeys(USERS.values())
    )
    return Associations(tuple(members), (), tuple(accounts))


def _job_record(rng, cluster, number, jobs):
    user = rng.choice(list(USERS))
    gpus = rng.choice((0, 0, 1, 2, 4, 8)) if cluster == "beta-gpu" else rng.choice((0, 0, 0, 0, 4))
    nodes = 1 if rng.random() < 0.7 else rng.choice((2, 4, 16))
    cpus, memory = rng.choice((1, 4, 16, 64)), rng.choice((4, 16, 64, 256)) * GIB
    node_count = max(40, jobs // 200)
    names = [f"{cluster[0]}{1 + (number * 3 + index) % node_count:03d}" for index in range(nodes)]
    state = JobState.RUNNING if number % max(12, jobs // 200) == 0 else rng.choice(END_STATES)
    state = JobState.PENDING if number % max(25, jobs // 100) == 7 else state
    submit = NOW - rng.randrange(600, 9 * DAY)
    time_limit = rng.choice((3600, 4 * 3600, DAY, 3 * DAY))
    start = end = elapsed = None
    if state is JobState.RUNNING:
        start = NOW - rng.randrange(300, min(time_limit, 2 * DAY))
        submit = start - rng.randrange(5, 9000)
    elif state is not JobState.PENDING:
        start = submit + rng.randrange(1, 9000)
        elapsed = (
            time_limit if state is JobState.TIMEOUT else int(time_limit * rng.random() ** 2) + 3
        )
        end = min(start + elapsed, NOW - 60)
        start = min(start, end - 1)
        elapsed = end - start
    jobid, array_ids = str(40_000 + number), {}
    if number % 17 == 3:
        array_ids = {"array_jobid": "39000", "array_index": number}
    if number % 31 == 5:
        jobid = str(uuid.UUID(int=rng.getrandbits(128)))
    started = start is not None
    return JobRecord(
        cluster=cluster, jobid=jobid, submit_time=submit, state=state, state_word=state.value,
        source="sacct", user=user, uid=1000 + list(USERS).index(user), account=USERS[user],
        partition="gpu" if gpus else rng.choice(("cpu", "long", "bigmem")), qos="normal",
        name=NAMES[number % len(NAMES)], start_time=start, end_time=end, elapsed_seconds=elapsed,
        eligible_time=submit, time_limit_seconds=time_limit,
        exit_code=1 if state is JobState.FAILED else 0 if end else None,
        reason=rng.choice(("Priority", "Resources", "QOSMaxGRESPerUser")) if not started else "",
        requested_cpus=cpus * nodes, requested_memory_bytes=memory * nodes,
        requested_gpus=gpus * nodes or None, requested_nodes=nodes,
        allocated_cpus=cpus * nodes if started else None,
        allocated_memory_bytes=memory * nodes if started else None,
        allocated_gpus=gpus * nodes or None if started else None,
        allocated_nodes=nodes if started else None,
        node_list=",".join(names) if started else "",
        submit_line=f"sbatch --cpus-per-task={cpus} --mem={memory // GIB}G run.sh '{HOSTILE_NAME}'",
        work_dir=f"/home/{user}/work", stdout_path=f"/home/{user}/work/slurm-{jobid}.out",
        nodes=tuple(NodeShare(name, cpus, memory, gpus or None) for name in names if started),
        steps=_steps(rng, start, end, state, cpus, nodes) if started else (),
        **array_ids,
    )  # fmt: skip


def _steps(rng, start, end, state, cpus, nodes):
    return tuple(
        StepRecord(
            step, state, state.value, name, start, end, end and end - start, 0 if end else None,
            nodes=nodes, tasks=nodes, cpus=cpus * nodes, cpu_seconds=rng.random() * 1000,
            memory_bytes=int(rng.random() * GIB),
        )
        for step, name in (("batch", "batch"), ("0", "a.out"))
    )  # fmt: skip


def _measured_usage(rng, row):
    start, end = row["start_time"], row["end_time"]
    until = end or NOW
    seconds = until - start
    window = JobWindow(row["cluster"], row["jobid"], start, until + 390)
    measured_job = JobToMeasure(
        row["id"], row["cluster"], row["jobid"], row["username"], row["uid"], start, end,
        row["allocated_nodes"], row["allocated_cpus"], window,
    )  # fmt: skip
    if row["id"] % 19 == 4:
        return measured_job, MeasuredUsage(row["id"], 0, 0, 0, 0.0, until, "no samples", {}, (), {})
    busy_share = min(1.0, rng.betavariate(2, 1))
    cpu = row["allocated_cpus"] * seconds * busy_share
    memory = row["allocated_memory_bytes"] * rng.betavariate(2, 2)
    joules = row["allocated_cpus"] * seconds * (2 + 5 * busy_share)
    gpus = _gpu_usages(rng, row, seconds)
    ratio = sum(gpu.utilization_ratio for gpu in gpus) / len(gpus) if gpus else None
    values = {
        "user_cpu_seconds": cpu * 0.93, "system_cpu_seconds": cpu * 0.07,
        "throttled_seconds": 0.0, "memory_peak_bytes": int(memory),
        "memory_peak_node_bytes": int(memory / row["allocated_nodes"]),
        "memory_limit_bytes": row["allocated_memory_bytes"],
        "memory_average_bytes": memory * 0.7, "working_set_average_bytes": memory * 0.6,
        "io_read_bytes": int(seconds * 2e5), "io_written_bytes": int(seconds * 5e4),
        "process_io_read_bytes": int(seconds * 9e6), "process_io_written_bytes": int(seconds * 1e6),
        "network_received_bytes": int(seconds * 3e5), "network_sent_bytes": int(seconds * 2e4),
        "major_page_faults": 12, "memory_limit_hits": 0,
        "oom_kills": int(row["state"] == "OUT_OF_MEMORY"),
        "threads_peak": 4 * row["allocated_cpus"],
        "cpu_waiting_seconds": seconds * 0.02, "memory_waiting_seconds": 0.4,
        "io_waiting_seconds": seconds * 0.01,
        "energy_host_active_joules": joules * 0.7, "energy_host_idle_joules": joules * 0.3,
    }  # fmt: skip
    if gpus:
        values |= {
            "gpus": len(gpus), "gpu_utilization_ratio": ratio,
            "gpu_busy_seconds": len(gpus) * seconds * ratio,
            "gpu_observed_seconds": len(gpus) * seconds,
            "gpu_memory_peak_bytes": max(gpu.memory_peak_bytes for gpu in gpus),
            "energy_gpu_active_joules": len(gpus) * seconds * 300 * ratio,
            "energy_gpu_idle_joules": len(gpus) * seconds * 60,
        }  # fmt: skip
    total_joules = sum(values.get(name, 0) for name in values if name.startswith("energy_"))
    return measured_job, MeasuredUsage(
        row["id"], seconds // 30, 0, row["allocated_nodes"], 1.0, until, "" if end else "running",
        values, gpus, {"rte": total_joules / 3.6e6 * 38.0},
    )  # fmt: skip


def _gpu_usages(rng, row, seconds):
    """Every fourth job leaves one of its GPUs idle."""
    count = row["allocated_gpus"] or 0
    per_node = max(1, count // (row["allocated_nodes"] or 1))
    names = row["node_list"].split(",")
    return [
        GpuUsage(
            names[index // per_node], f"GPU-{row['id']:08x}-{index:04x}-4000-8000-000000000000",
            "", str(index % per_node),
            0.0 if index == count - 1 and row["id"] % 4 == 0 else rng.betavariate(4, 1.5),
            int(rng.random() * 70 * GIB), 100, seconds, 0.0, 0.0,
        )
        for index in range(count)
    ]  # fmt: skip
