"""The generated cluster of `batchjob up --demo`: created, queried and removed."""

import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_cli.main import main
from batchjob_cli.up import demo_cluster, demo_month, demo_nodes
from batchjob_cli.up.demo_cluster import CLUSTER
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.samples.replay import Replay
from batchjob_stats_server import app
from batchjob_stats_server.options import SamplesOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.helpers.waiting import scaled

NOW = 1_775_300_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The data directory, the engine of its database, and the month."""
    data = tmp_path_factory.mktemp("demo")
    engine = writer_engine(parse_url(f"sqlite:///{data / 'jobs.db'}"), create=True)
    migrate(engine)
    month = demo_month.DemoMonth(engine, data / "samples", NOW)
    shutil.copytree(data, untouched_copy(data))
    yield data, engine, month
    engine.dispose()


def untouched_copy(data):
    """The folder with a copy of the month, in which no test writes."""
    return data.with_name(f"{data.name}-untouched")


@pytest.fixture(scope="module")
def get(demo):
    data, engine, month = demo
    with engine.begin() as db:
        text = tokens.create(db, "root", TokenRole.ADMIN, "test", NOW, expiry_time=NOW + 9999)
    settings = ServerSettings(
        DatabaseOptions(f"sqlite:///{data / 'jobs.db'}"),
        ServerWebOptions(allowed_host=("testserver",)),
        samples=SamplesOptions(str(data / "samples")),
    )
    services = demo_nodes.with_nodes(build(settings), data / "samples", month.plan)
    services = services._replace(clock=lambda: NOW, demo_cluster=CLUSTER)
    with TestClient(app.make(services)) as client:
        yield lambda path: client.get(path, headers={"Authorization": f"Bearer {text}"})


def test_same_seed_makes_same_month():
    assert demo_cluster.jobs(NOW) == demo_cluster.jobs(NOW)
    assert demo_cluster.jobs(NOW) != demo_cluster.jobs(NOW, seed=2)


def test_node_has_one_job_at_a_time():
    allocations = {}
    for job in demo_cluster.jobs(NOW):
        for share in job.record.nodes:
            allocations.setdefault(share.node, []).append(
                (job.record.start_time, job.record.end_time or NOW)
            )
    for times in allocations.values():
        times.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(times))


@pytest.mark.parametrize("hours", [1, 6, 30, 100])
def test_jobs_start_and_end_within_limits_as_time_passes(hours):
    plan, later = demo_cluster.plan_jobs(NOW), NOW + hours * demo_cluster.HOUR
    first, then = ([job.record for job in demo_cluster.jobs_at(plan, at)] for at in (NOW, later))
    assert then != first
    assert any(record.state.is_live for record in then)
    still = {record.jobid: record for record in then}
    for record in first:
        now = still[record.jobid]
        if not record.state.is_live:
            assert now == record
        if record.start_time is not None:
            assert (now.start_time, now.node_list) == (record.start_time, record.node_list)
    for record in then:
        if record.start_time is not None:
            assert (record.end_time or later) - record.start_time <= record.time_limit_seconds


def test_first_pending_job_of_partition_waits_for_resources():
    waiting = [job.record for job in demo_cluster.jobs(NOW) if job.record.state.value == "PENDING"]
    for partition in ("cpu", "gpu"):
        reasons = [each.reason for each in waiting if each.partition == partition]
        assert reasons == ["Resources", *["Priority"] * (len(reasons) - 1)]
        assert len(reasons) > 1


def test_advance_updates_database_and_samples(tmp_path):
    engine = writer_engine(parse_url(f"sqlite:///{tmp_path / 'jobs.db'}"), create=True)
    migrate(engine)
    month = demo_month.DemoMonth(engine, tmp_path / "samples", NOW)
    later = NOW + 6 * demo_cluster.HOUR
    running = [job.record for job in month.jobs if job.record.state.value == "RUNNING"]
    month.advance(later)
    job = schema.job.c
    with engine.connect() as db:
        rows = db.execute(sa.select(schema.job).where(job.cluster == CLUSTER)).mappings().all()
        measured = set(db.scalars(sa.select(schema.job_usage.c.job_id)))
    engine.dispose()
    now = {row["jobid"]: row for row in rows}
    assert any(now[record.jobid]["end_time"] for record in running)
    for row in rows:
        assert row["start_time"] is None or row["id"] in measured
        assert (row["end_time"] or later) <= later
    for record in running:
        replay = Replay(tmp_path / "samples", record.jobid)
        last = max(step.sample.at for step in replay.read())
        replay.close()
        assert NOW < last <= (now[record.jobid]["end_time"] or later)


def test_all_job_states_occur(get):
    rows = get(f"/api/v1/jobs?cluster={CLUSTER}&limit=1000").json()
    states = {row["state"] for row in rows}
    assert {"RUNNING", "PENDING", "FAILED", "OUT_OF_MEMORY", "TIMEOUT", "COMPLETED"} <= states
    assert any(row["allocated_gpus"] and row["usage_energy_joules"] for row in rows)


def test_no_time_is_in_the_future_and_no_job_exceeds_its_limit():
    for job in demo_cluster.jobs(NOW):
        record = job.record
        times = [record.submit_time, record.start_time, record.end_time]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert known[-1] <= NOW
        if record.start_time is not None:
            assert (record.end_time or NOW) - record.start_time <= record.time_limit_seconds


def test_jobs_of_one_name_differ_within_their_allocation(get):
    path = f"/api/v1/jobs?cluster={CLUSTER}&name={{}}&state=COMPLETED&limit=1000"
    for name in {recipe.name for recipe in demo_cluster.RECIPES}:
        rows = get(path.format(name)).json()
        shares = [row["cpu_efficiency"] for row in rows]
        assert len({round(share, 3) for share in shares}) > 3, name
        assert max(shares) <= 1, name
        assert all(row["memory_efficiency"] <= 1 for row in rows), name


def test_submit_line_requests_what_was_allocated(get):
    (job,) = get(f"/api/v1/jobs?cluster={CLUSTER}&name=finetune-llm&state=COMPLETED&limit=1").json()
    assert job["submit_line"] == (
        "sbatch --partition=gpu --nodes=2 --ntasks-per-node=64 --mem=512G --gpus-per-node=8 "
        "--time=48:00:00 finetune-llm.sh"
    )
    assert (job["allocated_cpus"], job["allocated_gpus"]) == (128, 16)


@pytest.mark.parametrize("name", ["finetune-llm", "gromacs-prod", "ocean-model"])
def test_curves_add_up_to_figures_of_list(get, name):
    path = f"/api/v1/jobs?cluster={CLUSTER}&name={name}&state=COMPLETED&limit=1"
    (job,) = get(path).json()
    seconds = job["elapsed_seconds"]

    def total(metric):
        """The area under the curves of all nodes and components."""
        points = get(f"/api/v1/jobs/{job['jobid']}/metrics?metric={metric}").json()
        moments = len({point["time"] for point in points})
        return sum(point["mean"] for point in points) / moments * seconds

    assert total("cpu") == pytest.approx(job["cpu_used_seconds"], rel=0.05)
    assert total("power") == pytest.approx(job["usage_energy_joules"], rel=0.05)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("variant-calling", "memory-oversized"),
        ("notebook", "gpu-partly-unused"),
        ("ocean-model", "unbalanced-nodes"),
    ],
)
def test_advice_is_given(get, name, rule):
    ended = f"/api/v1/jobs?cluster={CLUSTER}&name={name}&state=COMPLETED,CANCELLED&limit=1"
    (job,) = get(ended).json()
    rules = [each["rule"] for each in get(f"/api/v1/jobs/{job['jobid']}/report").json()["advice"]]
    assert rules, f"{rule} was expected"
    assert rule in rules


@pytest.mark.parametrize("metric", ["gpu_utilization", "gpu_power"])
def test_gpu_job_has_gpu_curves(get, metric):
    (job,) = get(f"/api/v1/jobs?cluster={CLUSTER}&name=finetune-llm&state=COMPLETED&limit=1").json()
    rows = get(f"/api/v1/jobs/{job['jobid']}/metrics?metric={metric}&aggregate=true").json()
    assert len(rows) > 20
    assert all(0 < row["mean"] <= {"ratio": 1, "watts": 400}[row["unit"]] for row in rows)


def test_failed_jobs_have_curves(get):
    rows = get(f"/api/v1/jobs?cluster={CLUSTER}&state=OUT_OF_MEMORY,NODE_FAIL&limit=100").json()
    assert len(rows) > 5
    for row in rows:
        assert get(f"/api/v1/jobs/{row['jobid']}/metrics?metric=memory").json(), row["jobid"]


def test_running_job_is_measured_without_gaps(get):
    running = get(f"/api/v1/jobs?cluster={CLUSTER}&state=RUNNING&limit=100").json()
    job, *_ = [row for row in running if row["allocated_gpus"]]
    report = get(f"/api/v1/jobs/{job['jobid']}/report").json()
    assert report["basis"]["doubts"] == ["running"]
    listed = job["usage_energy_joules"]
    assert report["energy"]["total_joules"] == pytest.approx(listed, rel=0.05)


def test_nodes_have_states_gpus_and_curves(get):
    cluster = get(f"/clusters/{CLUSTER}").text
    for words in ("Nodes in use", "1 takes no new jobs", "1 down"):
        assert words in cluster
    held = {
        share.node: job.record.jobid
        for job in demo_cluster.jobs(NOW)
        if job.recipe.gpus and job.record.state.value == "RUNNING"
        for share in job.record.nodes
    }
    node, jobid = next(iter(held.items()))
    page = get(f"/clusters/{CLUSTER}/nodes/{node}").text
    assert "GPUs now" in page
    assert f">{jobid}</a>" in page
    curves = "metric=cpu&metric=memory&metric=power&metric=gpu_utilization"
    rows = get(f"/api/v1/clusters/{CLUSTER}/nodes/{node}/metrics?{curves}").json()
    lines = {(row["metric"], row["line"]) for row in rows}
    gpus = {("gpu_utilization", f"GPU {gpu}") for gpu in range(8)}
    assert lines == {("cpu", ""), ("memory", ""), ("power", "host"), *gpus}
    assert "never report" in get("/admin").text


def test_accounts_have_fair_shares(get):
    assert "vision" in get(f"/clusters/{CLUSTER}/accounts/root").text
    page = get(f"/clusters/{CLUSTER}/accounts/vision").text
    assert "Fair share: shares divided by use" in page


def test_pages_say_that_data_is_generated(get):
    for path in ("/jobs", f"/clusters/{CLUSTER}", "/"):
        assert "is generated" in get(path).text


def test_list_names_clusters_when_there_are_several(demo, capsys):
    data, *_ = demo
    assert main(["jobs", f"--data={data}", "--limit=3"]) == 0
    assert "CLUSTER" not in capsys.readouterr().out
    run = ["run", f"--data={data}", "--name=mine", "--cgroup=never", "--quiet", "--", "true"]
    # Not in this process: a supervisor becomes the parent of orphans, and other tests leave some.
    subprocess.run([sys.executable, "-m", "batchjob_cli", *run], check=True, timeout=scaled(60))
    assert main(["jobs", f"--data={data}", "--limit=1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines if " mine " in line] == ["local"]
    assert all(CLUSTER in line for line in lines if line.startswith("8000"))


def test_remove_deletes_all_rows_and_samples(demo, tmp_path):
    shutil.copytree(untouched_copy(demo[0]), tmp_path, dirs_exist_ok=True)
    engine = writer_engine(parse_url(f"sqlite:///{tmp_path / 'jobs.db'}"))
    demo_month.remove(engine, tmp_path / "samples")
    with engine.connect() as db:
        counts = {
            table.name: db.scalar(sa.select(sa.func.count()).select_from(table))
            for table in schema.metadata.sorted_tables
        }
    engine.dispose()
    assert not any(counts.values()), counts
    assert not list((tmp_path / "samples").iterdir())
