"""The curves of a job over the API, from real stores."""

import csv
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
import uvicorn
from fastapi.testclient import TestClient

from batchjob.quantities.curves import CURVES
from batchjob.runtime.values import ListenAddress
from batchjob_cli.main import main as batchjob
from batchjob_stats_db.database import schema
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.main import open_listener
from batchjob_stats_server.turns import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET
from tests.helpers.waiting import scaled

START, END = NOW - 7000, NOW - 3400  # of job 1's first run, and of jobs 2 and 5
OTHER_GPU = {"gpu": "1", "uuid": "GPU-bb", "gpu_instance": ""}
OWN_GPU = {"gpu": "0", "uuid": "GPU-aa", "gpu_instance": ""}


def samples(metric, values, begin=START, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values, 1)]


def device_sample(family, value, at, **labels):
    return line("", value, at, **labels).replace("batchjob_job_", family, 1)


N2 = {"instance": "n002:10910"}
N3 = {"instance": "n003:10910"}
N9 = {"instance": "n009:10910"}
SAMPLES = [
    # The first run of job 1 on two nodes, seen by two replicas; then, after an hour, the second.
    *samples("cpu_seconds_total", range(60, 7201, 60), mode="user", replica="a"),
    *samples("cpu_seconds_total", range(60, 6001, 60), mode="user", replica="b"),
    *samples("cpu_seconds_total", range(6, 721, 6), mode="system", replica="a"),
    *samples("cpu_seconds_total", range(3, 361, 3), mode="user", **N2),
    *samples("cpu_seconds_total", [300, 600], NOW - 800, 50, mode="user"),
    *samples("memory_current_bytes", [1 << 30] * 120),
    *samples("memory_current_bytes", [5 << 30] * 120, user="mallory"),
    *samples("gpu_info", [1] * 120, **OWN_GPU, source="process", confirmed="true"),
    # A GPU that only the environment of the job names: others use it.
    *samples("gpu_info", [1] * 120, **OTHER_GPU, source="CUDA_VISIBLE_DEVICES", confirmed="false"),
    *samples("gpu_utilization_ratio", [0.1] * 120, **OTHER_GPU),
    *samples("gpu_utilization_ratio", [0.5, 0.7] * 60, **OWN_GPU),
    device_sample("batchjob_gpu_power_watts", 250, START + 60, **OWN_GPU),
    # Another node, with jobs of others, reports a GPU of this UUID.
    device_sample("batchjob_gpu_power_watts", 222, START + 60, **OWN_GPU, instance="n009:10910"),
    device_sample("batchjob_gpu_power_watts", 99, START + 60, gpu="1", uuid="GPU-bb"),
    device_sample("DCGM_FI_PROF_SM_ACTIVE", 0.25, START + 60, UUID="GPU-aa"),
    device_sample("DCGM_FI_PROF_SM_ACTIVE", 0.99, START + 60, UUID="GPU-bb"),
    # Bob's job ran for half an hour without its exporter, and its counters restarted.
    *samples("cpu_seconds_total", [30, 60, 90], NOW - 6000, user="bob", jobid="2", mode="user"),
    *samples("cpu_seconds_total", [5, 35], NOW - 4000, user="bob", jobid="2", mode="user"),
    # A node that was not allocated to the job tells of it, too.
    *samples("cpu_seconds_total", [9, 99], NOW - 6000, user="bob", jobid="2", mode="user", **N9),
    # One sample of carol's running job; the node knew only her uid.
    *samples("io_read_bytes_total", [5000], NOW - 5000, 50, user="1001", jobid="3", device="sda"),
    *samples("io_read_bytes_total", [7000], NOW - 5000, 50, user="1001", jobid="3", device="sdb"),
    # n003 did not know the user; on n001 the series without a user is not of this job.
    *samples("memory_current_bytes", [1 << 20], NOW - 5000, 50, user="1001", jobid="3"),
    *samples("memory_current_bytes", [7 << 20], NOW - 5000, 50, user="", jobid="3"),
    *samples("memory_current_bytes", [2 << 20], NOW - 5000, 50, user="", jobid="3", **N3),
]  # fmt: skip


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    with request.param(SAMPLES) as url:
        yield url


@pytest.fixture
def services_with_store(services, store):
    job = schema.job.c
    with services.writer.begin() as db:  # the first run of job 1 had two nodes
        first = sa.select(sa.func.min(job.id)).where(job.cluster == "c1", job.jobid == "1")
        job_id = db.execute(first).scalar_one()
        node = {"job_id": job_id, "cluster": "c1", "node": "n002"}
        db.execute(sa.insert(schema.job_node).values(node))
    return services._replace(stores=TimeSeriesPool([Prometheus(Endpoint(store))]))


@pytest.fixture
def get_metrics(services_with_store):
    return partial(request_metrics, services_with_store)


def request_metrics(services, path, user="vera", status=200, **params):
    headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(f"/api/v1/jobs/{path}/metrics", params=params)
    assert answer.status_code == status, answer.text
    return answer.json() if params.get("format", "json") == "json" else answer.text


@pytest.fixture
def first_run_params(get_metrics, proxy_client):
    rows = proxy_client("vera").get("/api/v1/jobs/1?cluster=c1").json()
    return {"cluster": "c1", "run": rows[-1]["id"]}


def test_unnamed_series_are_used_only_on_nodes_without_named_series(get_metrics):
    rows = get_metrics("3", metric="memory", points=4)
    assert {row["line"]: row["mean"] for row in rows} == {"n001": 1 << 20, "n003": 2 << 20}


def test_series_of_nodes_that_the_job_did_not_have_are_left_out(get_metrics):
    rows = get_metrics("2", metric="cpu", points=4)
    assert {row["line"] for row in rows} == {"n001"}


def test_cpu_curve_of_each_node(get_metrics, first_run_params):
    rows = get_metrics("1", metric="cpu", points=4, **first_run_params)
    assert [(row["line"], row["time"] - START * 1000) for row in rows] == [
        (node, at * 1000) for node in ("n001", "n002") for at in (900, 1800, 2700, 3600)
    ]
    assert [row["mean"] for row in rows] == pytest.approx([2.2] * 4 + [0.1] * 4)
    assert rows[0]["min"] == pytest.approx(2.2) == rows[0]["max"]
    assert rows[0]["unit"] == "cores"
    assert rows[0]["time_rfc3339"].endswith("Z")


def test_time_window(get_metrics, first_run_params):
    window = {"since": START + 900, "until": START + 1800, "points": 3}
    rows = get_metrics("1", metric=["cpu", "memory"], **window, **first_run_params)
    lines = {(row["metric"], row["line"]) for row in rows}
    assert lines == {("cpu", "n001"), ("cpu", "n002"), ("memory", "n001")}
    for curve in lines:
        curve_rows = [row for row in rows if (row["metric"], row["line"]) == curve]
        assert [row["time"] // 1000 - START for row in curve_rows] == [1200, 1500, 1800]
    assert {round(row["mean"], 3) for row in rows} == {2.2, 0.1, 1 << 30}
    single_point = get_metrics("1", metric="cpu", until=START + 900, points=1, **first_run_params)
    assert [row["time"] // 1000 - START for row in single_point] == [900, 900]
    assert single_point[0]["mean"] == pytest.approx(2.2)


@pytest.mark.parametrize("window", [(END, START), (START - 900, START - 1), (END + 1, END + 900)])
def test_window_outside_of_run_is_empty(get_metrics, first_run_params, window):
    since, until = window
    assert get_metrics("1", metric="cpu", since=since, until=until, **first_run_params) == []


def test_cpu_curve_by_mode(get_metrics, first_run_params):
    rows = get_metrics("1", metric="cpu_by_mode", points=1, **first_run_params)
    assert {row["line"]: round(row["mean"], 3) for row in rows} == {
        "n001 user": 2, "n001 system": 0.2, "n002 user": 0.1,
    }  # fmt: skip


def test_latest_of_several_runs_is_default(get_metrics):
    rows = get_metrics("1", metric="cpu", points=10, cluster="c1")
    assert [round(row["mean"]) for row in rows] == [6, 6, 6]


def test_series_of_another_user_with_same_jobid_are_not_shown(get_metrics, first_run_params):
    rows = get_metrics("1", metric="memory", points=2, **first_run_params)
    assert {row["max"] for row in rows} == {1 << 30}


def test_device_series_of_unconfirmed_gpu_are_not_shown(get_metrics, first_run_params):
    rows = get_metrics(
        "1", metric=["gpu_utilization", "gpu_power", "gpu_sm_active"], points=1, **first_run_params
    )
    assert [(r["metric"], r["line"], r["min"], r["mean"], r["max"]) for r in rows] == [
        ("gpu_utilization", "n001 GPU 0", 0.5, pytest.approx(0.6), 0.7),
        ("gpu_utilization", "n001 GPU 1", 0.1, pytest.approx(0.1), 0.1),
        ("gpu_power", "n001 GPU 0", 250, 250, 250),
        ("gpu_sm_active", "n001 GPU 0", 0.25, 0.25, 0.25),
    ]


def test_gap_and_counter_reset(get_metrics):
    rows = get_metrics("2", metric="cpu", points=2600)
    seconds_since_start = [(row["time"] // 1000 - (NOW - 6000)) for row in rows]
    assert max(after - before for before, after in pairwise(seconds_since_start)) > 1800
    assert {round(row["mean"], 3) for row in rows} == {1}
    assert len(rows) <= 6


def test_single_sample_is_summed_over_devices(get_metrics):
    (row,) = get_metrics("3", "dave", metric="io_read", points=1)
    assert row["mean"] == pytest.approx(12000 / 50)
    assert row["node"] == "n001"


def test_metrics_of_other_users_are_empty(get_metrics):
    assert get_metrics("2", "alice") == []
    assert get_metrics("2", "dave") == []
    assert get_metrics("4711") == get_metrics("8") == []  # an unknown job, and a pending one


def test_csv_and_selected_fields(get_metrics, first_run_params):
    text = get_metrics(
        "1", metric="cpu", points=2, format="csv", fields="line,time,mean", **first_run_params
    )
    assert [row["line"] for row in csv.DictReader(io.StringIO(text))] == ["n001"] * 2 + ["n002"] * 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"metric": "love"}, "unknown metric 'love'; expected one of cpu, "),
        ({"metric": ["cpu"] * 9}, "metric"),
        ({"points": 0}, "points"),
        ({"points": 10**6}, "points"),
        ({"query": "up"}, "query"),
        ({"run": "x"}, "run"),
        ({"since": "soon"}, "since"),
    ],
)
def test_invalid_parameters_are_rejected(get_metrics, params, message):
    assert message in get_metrics("1", status=422, **params)["detail"]


@pytest.mark.parametrize("metric", CURVES)
def test_query_of_every_curve_is_accepted(get_metrics, first_run_params, metric):
    get_metrics("1", metric=metric, **first_run_params)


def test_unreachable_store_answers_503(services, proxy_client):
    unreachable = Prometheus(Endpoint("http://127.0.0.1:1", timeout_seconds=1))
    services_without_store = services._replace(stores=TimeSeriesPool([unreachable]))
    assert (
        request_metrics(services_without_store, "1", status=503)["detail"]
        == "the time series database does not answer"
    )
    # Without any store configured, other routes work.
    assert proxy_client("vera").get("/api/v1/jobs/1/metrics").status_code == 503
    assert proxy_client("vera").get("/api/v1/jobs/1").status_code == 200


def test_too_many_concurrent_requests_answer_503(services_with_store, get_metrics, monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.turns.ACQUIRE_TIMEOUT_SECONDS", 0.01)
    with services_with_store.stores.acquire():
        assert "too many" in get_metrics("1", status=503)["detail"]


def test_docs_list_every_curve():
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    for curve in CURVES.values():
        assert f"| `{curve.name}` | {curve.unit} | {curve.about} |" in page


def test_slow_store_does_not_delay_other_requests(services):
    """Sixteen requests for curves wait for the store; jobs are answered meanwhile."""
    requested, released = threading.Event(), threading.Event()

    class SlowStore:
        def job_series(self, query, span, max_points):
            requested.set()
            released.wait(scaled(20))
            return []

    application = app.make(services._replace(stores=TimeSeriesPool([SlowStore()])))
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    with (
        TestClient(application, client=(PROXY, 50000), headers=headers) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        requests = [pool.submit(client.get, "/api/v1/jobs/1/metrics") for _ in range(16)]
        try:
            assert requested.wait(scaled(20))
            assert client.get("/api/v1/jobs/1").status_code == 200
        finally:
            released.set()
        assert {request.result().status_code for request in requests} == {200}


@pytest.fixture
def run_metrics_command(services_with_store, token_headers, tmp_path, capsys):
    """Run `batchjob metrics ...` as bob; gives status, lines of output, and errors."""
    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text(token_headers("bob")["Authorization"].removeprefix("Bearer "))
    web = replace(services_with_store.settings.web, allowed_host=("127.0.0.1",))
    application = app.make(
        services_with_store._replace(settings=services_with_store.settings._replace(web=web))
    )
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    with open_listener(ListenAddress("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()

        def run(*arguments):
            connection_flags = (f"--server={url}", f"--token-file={token_file}", "--utc")
            status = batchjob(["metrics", *arguments, *connection_flags])
            output = capsys.readouterr()
            return status, output.out.splitlines(), output.err

        try:
            yield run
        finally:
            server.should_exit = True
            thread.join()


def test_metrics_command_says_where_measurements_are(run_metrics_command):
    status, output, errors = run_metrics_command("2", "--type=cpu")
    assert (status, output) == (5, [])
    assert "this server keeps no samples; see jobs/{id}/metrics" in errors
