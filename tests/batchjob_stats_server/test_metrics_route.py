"""A job's measurements over the API, from real stores."""

import csv
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from batchjob.quantities.curves import CURVES
from batchjob.runtime.values import ListenAddress
from batchjob_cli.client import curves
from batchjob_cli.client.answer import ApiReply
from batchjob_cli.client.sample_table import TYPES
from batchjob_cli.client.table import format_table
from batchjob_cli.main import main as batchjob
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.main import open_listener
from batchjob_stats_server.promql.histories import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

START, END = NOW - 7000, NOW - 3400  # of job 1's first run, and of jobs 2 and 5
OTHERS = {"gpu": "1", "uuid": "GPU-bb", "gpu_instance": ""}
HELD = {"gpu": "0", "uuid": "GPU-aa", "gpu_instance": ""}


def course(metric, values, begin=START, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values, 1)]


def device(family, value, at, **labels):
    return line("", value, at, **labels).replace("batchjob_job_", family, 1)


N2 = {"instance": "n002:10910"}
N3 = {"instance": "n003:10910"}
SAMPLES = [
    # The first run of job 1 on two nodes, seen by two replicas; then, after an hour, the second.
    *course("cpu_seconds_total", range(60, 7201, 60), mode="user", replica="a"),
    *course("cpu_seconds_total", range(60, 6001, 60), mode="user", replica="b"),
    *course("cpu_seconds_total", range(6, 721, 6), mode="system", replica="a"),
    *course("cpu_seconds_total", range(3, 361, 3), mode="user", **N2),
    *course("cpu_seconds_total", [300, 600], NOW - 800, 50, mode="user"),
    *course("memory_current_bytes", [1 << 30] * 120),
    *course("memory_current_bytes", [5 << 30] * 120, user="mallory"),
    *course("gpu_info", [1] * 120, **HELD, source="process", confirmed="true"),
    # What its environment names besides: others work there.
    *course("gpu_info", [1] * 120, **OTHERS, source="CUDA_VISIBLE_DEVICES", confirmed="false"),
    *course("gpu_utilization_ratio", [0.1] * 120, **OTHERS),
    *course("gpu_utilization_ratio", [0.5, 0.7] * 60, **HELD),
    *(device("batchjob_gpu_power_watts", 250, START + 60, **HELD) for _ in range(1)),
    *(device("batchjob_gpu_power_watts", 99, START + 60, gpu="1", uuid="GPU-bb") for _ in "x"),
    *(device("DCGM_FI_PROF_SM_ACTIVE", 0.25, START + 60, UUID="GPU-aa") for _ in range(1)),
    *(device("DCGM_FI_PROF_SM_ACTIVE", 0.99, START + 60, UUID="GPU-bb") for _ in range(1)),
    # Bob's job ran for half an hour without its exporter, and its counters restarted.
    *course("cpu_seconds_total", [30, 60, 90], NOW - 6000, user="bob", jobid="2", mode="user"),
    *course("cpu_seconds_total", [5, 35], NOW - 4000, user="bob", jobid="2", mode="user"),
    # One sample of carol's, who runs; her name was not known on the node.
    *course("io_read_bytes_total", [5000], NOW - 5000, 50, user="1001", jobid="3", device="sda"),
    *course("io_read_bytes_total", [7000], NOW - 5000, 50, user="1001", jobid="3", device="sdb"),
    # n003 did not learn whose the job is; on n001 what names nobody is not the job's.
    *course("memory_current_bytes", [1 << 20], NOW - 5000, 50, user="1001", jobid="3"),
    *course("memory_current_bytes", [7 << 20], NOW - 5000, 50, user="", jobid="3"),
    *course("memory_current_bytes", [2 << 20], NOW - 5000, 50, user="", jobid="3", **N3),
]  # fmt: skip


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    # What has neither job nor user is not told apart by them.
    with request.param(SAMPLES) as url:
        yield url


@pytest.fixture
def measured(services, store):
    return services._replace(histories=TimeSeriesPool([Prometheus(Endpoint(store))]))


@pytest.fixture
def ask(measured):
    return partial(asked, measured)


def asked(services, path, user="vera", status=200, **params):
    headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(f"/api/v1/jobs/{path}/metrics", params=params)
    assert answer.status_code == status, answer.text
    return answer.json() if params.get("format", "json") == "json" else answer.text


@pytest.fixture
def first_run(ask, proxied):
    rows = proxied("vera").get("/api/v1/jobs/1?cluster=c1").json()
    return {"cluster": "c1", "run": rows[-1]["id"]}


def test_nodes_that_did_not_learn_the_user(ask):
    rows = ask("3", metric="memory", points=4)
    assert {row["line"]: row["mean"] for row in rows} == {"n001": 1 << 20, "n003": 2 << 20}


def test_cpus_in_use_on_each_node(ask, first_run):
    rows = ask("1", metric="cpu", points=4, **first_run)
    assert [(row["line"], row["time"] - START * 1000) for row in rows] == [
        (node, at * 1000) for node in ("n001", "n002") for at in (900, 1800, 2700, 3600)
    ]
    assert [row["mean"] for row in rows] == pytest.approx([2.2] * 4 + [0.1] * 4)
    assert rows[0]["min"] == pytest.approx(2.2) == rows[0]["max"]
    assert rows[0]["unit"] == "cores"
    assert rows[0]["time_rfc3339"].endswith("Z")


def test_a_part_of_the_time(ask, first_run):
    window = {"since": START + 900, "until": START + 1800, "points": 3}
    rows = ask("1", metric=["cpu", "memory"], **window, **first_run)
    lines = {(row["metric"], row["line"]) for row in rows}
    assert lines == {("cpu", "n001"), ("cpu", "n002"), ("memory", "n001")}
    for each in lines:
        seen = [row for row in rows if (row["metric"], row["line"]) == each]
        assert [row["time"] // 1000 - START for row in seen] == [1200, 1500, 1800]
    assert {round(row["mean"], 3) for row in rows} == {2.2, 0.1, 1 << 30}
    alone = ask("1", metric="cpu", until=START + 900, points=1, **first_run)
    assert [row["time"] // 1000 - START for row in alone] == [900, 900]
    assert alone[0]["mean"] == pytest.approx(2.2)


@pytest.mark.parametrize("window", [(END, START), (START - 900, START - 1), (END + 1, END + 900)])
def test_a_time_in_which_the_job_did_not_run(ask, first_run, window):
    since, until = window
    assert ask("1", metric="cpu", since=since, until=until, **first_run) == []


def test_parts(ask, first_run):
    rows = ask("1", metric="cpu_by_mode", points=1, **first_run)
    assert {row["line"]: round(row["mean"], 3) for row in rows} == {
        "n001 user": 2, "n001 system": 0.2, "n002 user": 0.1,
    }  # fmt: skip


def test_of_several_runs_the_latest(ask):
    rows = ask("1", metric="cpu", points=10, cluster="c1")
    assert [round(row["mean"]) for row in rows] == [6, 6, 6]


def test_what_another_user_had_under_this_id_is_not_shown(ask, first_run):
    rows = ask("1", metric="memory", points=2, **first_run)
    assert {row["max"] for row in rows} == {1 << 30}


def test_gpus_and_no_series_of_one_that_only_the_environment_names(ask, first_run):
    rows = ask("1", metric=["gpu_utilization", "gpu_power", "gpu_sm_active"], points=1, **first_run)
    assert [(r["metric"], r["line"], r["min"], r["mean"], r["max"]) for r in rows] == [
        ("gpu_utilization", "n001 GPU 0", 0.5, pytest.approx(0.6), 0.7),
        ("gpu_utilization", "n001 GPU 1", 0.1, pytest.approx(0.1), 0.1),
        ("gpu_power", "n001 GPU 0", 250, 250, 250),
        ("gpu_sm_active", "n001 GPU 0", 0.25, 0.25, 0.25),
    ]


def test_a_gap_and_a_counter_that_began_anew(ask):
    rows = ask("2", metric="cpu", points=2600)
    seen = [(row["time"] // 1000 - (NOW - 6000)) for row in rows]
    assert max(after - before for before, after in pairwise(seen)) > 1800
    assert {round(row["mean"], 3) for row in rows} == {1}
    assert len(rows) <= 6


def test_one_sample_and_two_devices(ask):
    (row,) = ask("3", "dave", metric="io_read", points=1)
    assert row["mean"] == pytest.approx(12000 / 50)
    assert row["node"] == "n001"


def test_nobody_sees_anything_of_others(ask):
    assert ask("2", "alice") == []
    assert ask("2", "dave") == []
    assert ask("4711") == ask("8") == []  # there is no such job; this one waits


def test_csv_and_chosen_fields(ask, first_run):
    text = ask("1", metric="cpu", points=2, format="csv", fields="line,time,mean", **first_run)
    assert [row["line"] for row in csv.DictReader(io.StringIO(text))] == ["n001"] * 2 + ["n002"] * 2


@pytest.mark.parametrize(
    ("params", "said"),
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
def test_wrong_questions(ask, params, said):
    assert said in ask("1", status=422, **params)["detail"]


@pytest.mark.parametrize("metric", CURVES)
def test_every_curve_is_a_query_that_prometheus_takes(ask, first_run, metric):
    ask("1", metric=metric, **first_run)


def test_a_store_that_is_gone(services, proxied):
    nobody = Prometheus(Endpoint("http://127.0.0.1:1", timeout_seconds=1))
    gone = services._replace(histories=TimeSeriesPool([nobody]))
    assert asked(gone, "1", status=503)["detail"] == "the time series database does not answer"
    # Without any store configured, the rest works.
    assert proxied("vera").get("/api/v1/jobs/1/metrics").status_code == 503
    assert proxied("vera").get("/api/v1/jobs/1").status_code == 200


def test_too_many_at_once(measured, ask, monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.promql.histories.ACQUIRE_TIMEOUT_SECONDS", 0.01)
    with measured.histories.acquire():
        assert "too many" in ask("1", status=503)["detail"]


def test_the_page_about_the_server_names_every_curve():
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    for curve in CURVES.values():
        assert f"| `{curve.name}` | {curve.unit} | {curve.about} |" in page


def test_a_slow_store_does_not_keep_other_questions_waiting(services):
    """Of sixteen who ask for curves at once one is served; jobs are answered meanwhile."""
    asked, let_go = threading.Event(), threading.Event()

    class Slow:
        def job_series(self, asked_for, span, stretches):
            asked.set()
            let_go.wait(20)
            return []

    made = app.make(services._replace(histories=TimeSeriesPool([Slow()])))
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    with (
        TestClient(made, client=(PROXY, 50000), headers=headers) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        curves = [pool.submit(client.get, "/api/v1/jobs/1/metrics") for _ in range(16)]
        try:
            assert asked.wait(20)
            assert client.get("/api/v1/jobs/1").status_code == 200
        finally:
            let_go.set()
        assert {each.result().status_code for each in curves} == {200}


def test_the_command_line_shows_them_as_a_table(measured):
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(measured), client=(PROXY, 50000), headers=headers)

    def asked(path, parameters):
        answer = client.get(f"/api/v1/{path}", params=parameters)
        return ApiReply(answer.status_code, answer.content, "")

    found = list(curves.rows(asked, "2", "cpu"))
    begin, end = NOW - 5990, NOW - 5930
    part = [row["time"] for row in curves.rows(asked, "2", "cpu", begin, end)]
    assert part == [begin + 30, end]
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    assert {(row["jobid"], row["node"]) for row in found} == {("2", "n001")}
    assert all(START < row["time"] <= END for row in found)
    assert max(row["cpu"] for row in found) == pytest.approx(1)
    table = format_table(curves.columns("cpu", UTC), found).splitlines()
    assert table[0].split() == [
        "TIME",
        "NODE",
        "CPU",
        "CPUS",
        "CPU",
        "THROTTLED",
        "PRESSURE",
        "CPU",
    ]
    assert len(table) == len(found) + 1


@pytest.fixture
def command(measured, token, tmp_path, capsys):
    """`batchjob metrics ...` of a user who asks the server."""
    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text(token("bob")["Authorization"].removeprefix("Bearer "))
    web = replace(measured.settings.web, allowed_host=("127.0.0.1",))
    made = app.make(measured._replace(settings=measured.settings._replace(web=web)))
    answering = uvicorn.Server(uvicorn.Config(made, log_level="warning"))
    with open_listener(ListenAddress("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=answering.run, args=([listener],))
        thread.start()

        def given(*arguments):
            asked = (f"--server={url}", f"--token-file={token_file}", "--utc")
            status = batchjob(["metrics", *arguments, *asked])
            told = capsys.readouterr()
            return status, told.out.splitlines(), told.err

        try:
            yield given
        finally:
            answering.should_exit = True
            thread.join()


def test_the_command_asks_a_server(command):
    status, (head, *rows), errors = command("2", "--type=cpu")
    assert (status, errors, head.split()[0]) == (0, "", "TIME")
    assert all("n001" in row for row in rows)
    _, objects, _ = command("2", "--type=cpu", "--json", "--limit=1")
    assert json.loads(objects[0])["cpu"] == pytest.approx(1)
    status, _, errors = command("5")  # alice's
    assert (status, errors.count("\n")) == (3, 1)


@pytest.mark.parametrize("type", TYPES)
def test_every_table_of_the_command_line_has_curves(type):
    assert 1 <= len(curves.CURVES[type]) <= 8
    assert set(curves.CURVES[type]) <= set(CURVES)
