"""The recorded cluster of `batchjob up --demo`: loaded, played, queried and removed."""

import html
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from importlib.resources import files
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob.schedulers.accounting import SubmittedJob
from batchjob.schedulers.states import JobState
from batchjob_cli.main import main
from batchjob_cli.up import demo_cluster, demo_nodes, demo_recording
from batchjob_cli.up.demo_recording import CLUSTER, DAY, FILE, PAST_DAYS
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import (
    DatabaseOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_db.samples.replay import Replay
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server import app
from batchjob_stats_server.options import SamplesOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from benchmarks.demo.__main__ import header, unmeasured_lines, usage
from benchmarks.demo.schedule import jobs as scheduled_jobs
from tests.helpers.waiting import scaled

NOW = 1_775_300_000
HOUR = 3600
LIMIT = 3_000_000  # bytes


class Clock:
    """A time that a test sets."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def poller_of(engine, source, samples, clock):
    """The poller of the demo, at the time of the clock."""
    settings = demo_cluster.poller_settings(source, str(engine.url), samples)
    (cluster,) = settings.clusters
    return Poller(
        cluster, Store(engine, CLUSTER, clock=clock), SampleHistory(samples, CLUSTER),
        settings.poll, settings.retention, PollerMetrics(), clock,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recording():
    return demo_recording.read(NOW)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The data directory, the engine, the recording, and the ids of jobs that ran at first.

    The demo has been started, and was polled again six hours later, which is now.
    """
    data = tmp_path_factory.mktemp("demo")
    engine = writer_engine(parse_url(f"sqlite:///{data / 'jobs.db'}"), create=True)
    migrate(engine)
    clock, stopped = Clock(NOW - 6 * HOUR), threading.Event()
    source = demo_cluster.load(engine, data / "samples", clock)
    poller = poller_of(engine, source, data / "samples", clock)
    stopped.set()  # after what is running
    poller.run_cycle(stopped)
    job = schema.job.c
    with engine.connect() as db:
        ran = db.scalars(sa.select(job.jobid).where(job.state == JobState.RUNNING.value)).all()
    clock.now = NOW
    assert poller.run_cycle()
    shutil.copytree(data, untouched_copy(data))
    yield data, engine, source.recording, ran
    engine.dispose()


def untouched_copy(data):
    """The folder with a copy of the demo, in which no test writes."""
    return data.with_name(f"{data.name}-untouched")


@pytest.fixture(scope="module")
def get(demo):
    data, engine, recording, _ = demo
    with engine.begin() as db:
        text = tokens.create(db, "root", TokenRole.ADMIN, "test", NOW, expiry_time=NOW + 9999)
    settings = ServerSettings(
        DatabaseOptions(f"sqlite:///{data / 'jobs.db'}"),
        ServerWebOptions(allowed_host=("testserver",)),
        samples=SamplesOptions(str(data / "samples")),
    )
    services = demo_nodes.with_nodes(build(settings), data / "samples", recording)
    services = services._replace(clock=lambda: NOW, demo_cluster=CLUSTER)
    with TestClient(app.make(services)) as client:
        yield lambda path: client.get(path, headers={"Authorization": f"Bearer {text}"})


def test_recording_is_small_and_made_by_the_generator(recording):
    assert files(demo_recording.__package__).joinpath(FILE).stat().st_size < LIMIT
    begin = min(job.record.submit_time for job in recording.jobs) // DAY * DAY
    generated, recorded = scheduled_jobs(), recording.jobs
    assert [str(job.jobid) for job in generated] == [job.record.jobid for job in recorded]
    for line, job in zip(unmeasured_lines(generated[::20]), recorded[::20], strict=True):
        same = demo_recording.job_of_line(json.loads(json.dumps(line)), begin)
        assert (same.record, same.loads) == (job.record, job.loads)
    assert header()["scripts"] == recording.scripts


@pytest.mark.parametrize("name", ["finetune-llm", "rna-align", "docking", "ocean-model"])
def test_usage_is_measured_from_samples(recording, tmp_path, name):
    job = next(job for job in recording.jobs if job.record.name == name)
    assert usage(job, tmp_path) == job.usage


def test_allocations_fit_into_nodes(recording):
    changes = defaultdict(list)
    for job in recording.jobs:
        for share in job.record.nodes:
            amounts = (share.cpus, share.memory_bytes, share.gpus or 0)
            changes[share.node].append((job.record.start_time, 1, amounts))
            changes[share.node].append((job.record.end_time, -1, amounts))
    for node, of_node in changes.items():
        facts, held = recording.nodes[node], [0, 0, 0]
        for _, sign, amounts in sorted(of_node):
            held = [sum_ + sign * amount for sum_, amount in zip(held, amounts, strict=True)]
            assert held[0] <= facts["cpus"], node
            assert held[1] <= facts["memory_gib"] << 30, node
            assert held[2] <= facts["gpus"], node


@pytest.mark.parametrize("now", [NOW // DAY * DAY, NOW // DAY * DAY + DAY - 1])
def test_four_weeks_are_past_and_a_fifth_is_ahead(now):
    jobs = demo_recording.read(now).jobs
    first, last = (jobs[number].record.submit_time for number in (0, -1))
    assert PAST_DAYS * DAY - HOUR < now - first < (PAST_DAYS + 1) * DAY
    assert 5.9 * DAY < last - now <= 7 * DAY


def test_jobs_are_submitted_start_and_end_at_all_times_of_the_fifth_week(recording):
    times = sorted(
        time
        for job in recording.jobs
        for time in (job.record.submit_time, job.record.start_time, job.record.end_time)
        if time is not None and NOW <= time < NOW + 5 * DAY
    )
    assert max(then - before for before, then in itertools.pairwise(times)) < HOUR
    assert len(times) / 5 > 24 * 6  # six an hour


@pytest.mark.parametrize("hours", [1, 6, 30, 100])
def test_jobs_start_and_end_within_limits_as_time_passes(recording, hours):
    later = NOW + hours * HOUR
    for job in recording.jobs:
        if job.record.submit_time > NOW:
            continue
        before, now = job.record_at(NOW), job.record_at(later)
        if not before.state.is_live:
            assert now == before
        if before.start_time is not None:
            assert (now.start_time, now.node_list) == (before.start_time, before.node_list)
        times = [now.submit_time, now.start_time, now.end_time]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert known[-1] <= later
        if now.start_time is not None:
            assert (now.end_time or later) - now.start_time <= now.time_limit_seconds
            assert {step.state for step in now.steps} <= {JobState.RUNNING, JobState.COMPLETED} or (
                not now.state.is_live
            )


def test_first_pending_job_of_partition_waits_for_resources(recording, tmp_path):
    for hour in range(0, 48, 3):
        now = NOW + hour * HOUR
        source = demo_cluster.DemoSource(recording, tmp_path, lambda now=now: now)
        records = [each for each in source.changed(now) if each.state is JobState.PENDING]
        for partition in ("cpu", "gpu"):
            reasons = [each.reason for each in records if each.partition == partition]
            in_turn = [each for each in reasons if each in ("Resources", "Priority")]
            assert (
                in_turn == ["Resources", "Priority", *["Priority"] * len(in_turn)][: len(in_turn)]
            )


def test_demo_shows_what_batchjob_can_show(recording):
    records = [job.record for job in recording.jobs if job.record.submit_time <= NOW]
    assert {record.state for record in records} >= {
        JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.TIMEOUT,
        JobState.CANCELLED, JobState.NODE_FAIL,
    }  # fmt: skip
    waits = {job.waits_for for job in recording.jobs}
    assert {"Dependency", "JobArrayTaskLimit", "AssocGrpCpuLimit"} <= waits
    arrays = {record.array_jobid for record in records if record.array_jobid}
    assert len(arrays) > 20
    assert any(record.dependencies.startswith("afterok:") for record in records)
    of_one_name = [record.state for record in records if record.name == "rna-align"]
    assert of_one_name[-10:] == [JobState.OUT_OF_MEMORY] * 9 + [JobState.COMPLETED]
    on_bad_node = [record for record in records if "c13" in record.node_list.split(",")]
    lately = [record.state for record in on_bad_node if record.start_time > NOW - 7 * DAY]
    assert lately.count(JobState.FAILED) > len(lately) / 4
    idle = [job for job in recording.jobs if job.record.name == "jupyter"]
    assert not any(any(loads["gpus"][gpu][0]) for job in idle for loads in job.loads
                   for gpu in loads["gpus"])  # fmt: skip
    assert any(account.limits for account in recording.associations.accounts)
    assert {step.step for record in records for step in record.steps} >= {"batch", "extern", "0"}


def test_scripts_are_read_by_job(recording, tmp_path):
    source = demo_cluster.DemoSource(recording, tmp_path, lambda: NOW)
    (record, *_) = [each for each in source.changed(NOW) if each.name == "gromacs-prod"]
    text = source.script(SubmittedJob(record.jobid, record.submit_time))
    assert "#SBATCH --nodes=4\n" in text
    assert "srun gmx_mdrun" in text


def test_jobs_end_in_database_and_samples_as_time_passes(demo):
    data, engine, _, ran = demo
    job, usage_of = schema.job.c, schema.job_usage.c
    figures = sa.select(
        job.jobid, job.end_time, usage_of.caveats, usage_of.user_cpu_seconds
    ).where(job.id == usage_of.job_id, job.jobid.in_(ran), job.cluster == CLUSTER)  # fmt: skip
    with engine.connect() as db:
        rows = db.execute(figures).all()
    assert {row.jobid for row in rows} == set(ran)
    assert any(row.end_time for row in rows)
    for row in rows:
        replay = Replay(data / "samples", row.jobid)
        last = max(step.sample.at for step in replay.read())
        replay.close()
        assert NOW - 6 * HOUR < last <= (row.end_time or NOW)
        assert row.caveats in (("",) if row.end_time else ("running",))
        assert row.user_cpu_seconds > 0


def test_all_job_states_occur(get):
    rows = get(f"/api/v1/jobs?cluster={CLUSTER}&limit=1000").json()
    states = {row["state"] for row in rows}
    assert {"RUNNING", "PENDING", "FAILED", "OUT_OF_MEMORY", "TIMEOUT", "COMPLETED"} <= states
    assert any(row["allocated_gpus"] and row["usage_energy_joules"] for row in rows)


def test_jobs_of_one_name_differ_within_their_allocation(get):
    path = f"/api/v1/jobs?cluster={CLUSTER}&name={{}}&state=COMPLETED&limit=1000"
    for name in ("train-resnet", "variant-calling", "gromacs-prod", "docking"):
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


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_peaks_of_list_and_page_are_those_of_the_curves(get, state):
    """Records once had final peaks of running jobs, and peaks of GPU memory below their curves."""
    list_path = f"/api/v1/jobs?cluster={CLUSTER}&state={state}&gpus_at_least=1&limit=1"
    (job,) = get(list_path).json()
    path = f"/api/v1/jobs/{job['jobid']}"

    def peak(metric):
        """The highest point of the sum of all nodes, or of any GPU."""
        sums = defaultdict(list)
        for point in get(f"{path}/metrics?metric={metric}").json():
            sums[point["time"]].append(point["max"] or 0)
        return max(map(sum if metric == "memory" else max, sums.values()))

    use = get(f"{path}/report").json()["use"]
    assert job["memory_used_bytes"] == use["peak_memory_bytes"]
    assert peak("memory") == pytest.approx(job["memory_used_bytes"], rel=0.05)
    assert peak("gpu_memory") == pytest.approx(job["usage_gpu_memory_peak_bytes"], rel=0.01)


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
    assert report["basis"]["caveats"] == ["running"]
    listed = job["usage_energy_joules"]
    assert report["energy"]["total_joules"] == pytest.approx(listed, rel=0.05)


def test_nodes_have_states_gpus_and_curves(get, recording):
    cluster = get(f"/clusters/{CLUSTER}").text
    for words in ("Nodes in use", "1 takes no new jobs", "1 down"):
        assert words in cluster
    held = {
        share.node: job.record.jobid
        for job in recording.jobs
        if job.record.start_time is not None and job.record.start_time <= NOW < job.record.end_time
        for share in job.record.nodes
        if share.gpus
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
    assert "Fair share (above 1: less used than granted)" in page


def test_pages_say_that_data_is_generated(get):
    for path in ("/jobs", f"/clusters/{CLUSTER}", "/"):
        assert "is generated" in get(path).text


def test_links_of_pages_lead_somewhere(get):
    """Follow them from the start page on, and from three pages of each kind."""
    asked, dead, next_paths = Counter(), {}, ["/"]
    while next_paths:
        path = next_paths.pop(0)
        kind = re.sub("[0-9]+", "0", urlsplit(path).path)
        asked[kind] += 1
        if urlsplit(path).netloc or not path.startswith("/") or asked[kind] > 3:
            continue
        answer = get(path)
        if answer.status_code >= 400:
            dead[path] = answer.status_code, answer.text
        elif "html" in answer.headers.get("content-type", ""):
            links = map(html.unescape, re.findall(r'\b(?:href|src)="([^"]+)"', answer.text))
            next_paths += sorted({urljoin(path, urldefrag(link).url) for link in links})
    assert not dead
    assert len(asked) > 30


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
    demo_cluster.remove(engine, tmp_path / "samples")
    with engine.connect() as db:
        counts = {
            table.name: db.scalar(sa.select(sa.func.count()).select_from(table))
            for table in schema.metadata.sorted_tables
        }
    engine.dispose()
    assert not any(counts.values()), counts
    assert not list((tmp_path / "samples").iterdir())
