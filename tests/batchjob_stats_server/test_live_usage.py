"""Running jobs in lists have the usage of now, from one question for all, and no page waits."""

import contextlib
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.queries.efficiency import replace_usage, replace_usages
from batchjob_stats_db.queries.jobs import running
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.bounded_wait import BoundedWait
from batchjob_stats_server.live_usage import LiveUsage
from batchjob_stats_server.promql.histories import TimeSeriesPool
from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, relayed
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET
from tests.e2e.processes import until

CAROL = {"user": "carol", "jobid": "3"}  # runs since NOW - 5000
UNTIL = (NOW - 50) * 1000  # when her last sample was


def course(metric, values, **labels):
    return [line(metric, value, NOW - 5000 + 30 * n, **labels) for n, value in enumerate(values, 1)]


SAMPLES = [
    *course("cpu_seconds_total", range(120, 19801, 120), mode="user", **CAROL),
    *course("memory_peak_bytes", [1 << 30] * 165, **CAROL),
    *course("gpu_utilization_ratio", [0] * 165, **CAROL, gpu="0", uuid="GPU-c"),
    *course("emissions_grams_total", [n / 10 for n in range(1, 166)], provider="owid", **CAROL),
    # Somebody else's numbers under her id.
    *course("cpu_seconds_total", [10**9] * 165, mode="user", jobid="3", user="mallory"),
]


def live(services, url, seconds=60.0, stopwatch=time.monotonic):
    histories, bounded = TimeSeriesPool([Prometheus(Endpoint(url))]), BoundedWait(seconds=seconds)
    asked = LiveUsage(services.reader, histories, UsagePolicy(), 30.0, bounded, stopwatch)
    return services._replace(histories=histories, live=asked)


@pytest.fixture(scope="module", params=SERVERS)
def store(request):
    with request.param(SAMPLES) as url:
        yield url


def get(services, path, **params):
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer


def carols(answer):
    (job,) = [row for row in answer.json() if row["jobid"] == "3"]
    return job


@pytest.mark.parametrize("where", ["/api/v1/jobs", "/api/v1/jobs/3"])
def test_the_api_has_running_jobs_as_of_now(services, store, where):
    job = carols(get(live(services, store), where))
    assert job["usage_user_cpu_seconds"] == 19800
    assert job["usage_memory_peak_bytes"] == 1 << 30
    assert job["usage_gpu_utilization_ratio"] == 0
    assert job["usage_until_time"] == UNTIL
    assert job["cpu_efficiency"] == pytest.approx(19800 / job["cpu_available_seconds"])


@pytest.mark.parametrize("end", [NOW + 3, NOW - 10], ids=["at once", "late"])
def test_a_job_is_asked_for_again_once_its_end_is_told(services, store, end):
    """What is kept of it was measured as that of a running job, maybe after its end."""
    asked = []

    def look(now):
        return carols(get(measured._replace(clock=lambda: now), "/api/v1/jobs/3"))

    with relayed(store, heard=asked.append) as counting:
        measured = live(services, counting)
        look(NOW)
        look(NOW + 2)
        assert len(asked) == 1
        ended = {"state": "COMPLETED", "end_time": end, "usage_due_time": end + 390}
        with services.writer.begin() as db:
            db.execute(sa.update(schema.job).where(schema.job.c.jobid == "3").values(ended))
        assert look(NOW + 4)["usage_until_time"] == end * 1000
        again = len(asked)
        look(NOW + 5)
    assert len(asked) == again > 1


def test_gpus_of_a_running_job_are_as_of_now(services, store):
    (gpu,) = get(live(services, store), "/api/v1/jobs/3/gpus").json()
    assert (gpu["node"], gpu["uuid"], gpu["utilization_ratio"]) == ("n001", "GPU-c", 0)


def test_emissions_of_a_running_job_are_as_of_now(services, store):
    (row,) = get(live(services, store), "/api/v1/jobs/3/emissions").json()
    assert (row["provider"], row["grams"]) == ("owid", 16.5)


@pytest.mark.parametrize("part", ["gpus", "emissions"])
def test_a_store_that_is_gone_leaves_the_recorded_parts(services, part):
    with services.reader.connect() as db:
        number = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "3"))
    recorded = {
        "gpus": {"node": "n001", "uuid": "GPU-c", "gpu_instance": "", "utilization_ratio": 0.5},
        "emissions": {"provider": "owid", "grams": 7.0},
    }
    table = {"gpus": schema.job_gpu, "emissions": schema.job_emissions}[part]
    with services.writer.begin() as db:
        db.execute(sa.insert(table).values(job_id=number, **recorded[part]))
    (row,) = get(live(services, "http://127.0.0.1:1"), f"/api/v1/jobs/3/{part}").json()
    assert row.items() >= recorded[part].items()


def test_a_page_asks_one_query(services, store):
    asked = []
    with relayed(store, heard=asked.append) as counting:
        job = carols(get(live(services, counting), "/api/v1/jobs", state="RUNNING"))
    assert job["usage_until_time"] == UNTIL
    assert len(asked) == 1


def test_chosen_fields_have_them_too(services, store):
    answer = get(live(services, store), "/api/v1/jobs", fields="jobid,cpu_used_seconds")
    assert carols(answer) == {"jobid": "3", "cpu_used_seconds": 19800}


def test_idle_gpus_go_by_them(services, store):
    with services.writer.begin() as db:
        carols_job = schema.job.c.jobid == "3"
        db.execute(sa.update(schema.job).where(carols_job).values(allocated_gpus=1))
    (idle,) = get(live(services, store), "/api/v1/stats/idle-gpus").json()
    assert (idle["jobid"], idle["idle_gpus"], idle["gpu_utilization_ratio"]) == ("3", 1, 0)
    assert idle["measured_time"] == UNTIL
    assert idle["idle_gpu_seconds"] == 4950
    page = get(live(services, store), "/clusters/c1").text
    assert "is known to use less than 25 % of its GPUs" not in page


def test_one_idle_gpu_of_two_is_as_of_now(services):
    with services.writer.begin() as db:
        carols_job = schema.job.c.jobid == "3"
        db.execute(sa.update(schema.job).where(carols_job).values(allocated_gpus=2))
    busy = course("gpu_utilization_ratio", [0.8] * 165, **CAROL, gpu="1", uuid="GPU-d")
    with prometheus([*SAMPLES, *busy]) as url:
        measured = live(services, url)
        (idle,) = get(measured, "/api/v1/stats/idle-gpus").json()
        page = get(measured, "/jobs").text
    assert (idle["idle_gpus"], idle["gpu_utilization_ratio"]) == (1, pytest.approx(0.4))
    assert "Use of its GPUs: 0\N{NARROW NO-BREAK SPACE}%, 80\N{NARROW NO-BREAK SPACE}%" in page


def test_pages_have_them(services, store):
    live_services = live(services, store)
    for path in ("/jobs", "/compare?job=3", "/clusters/c1"):
        get(live_services, path)


def test_an_answer_that_took_long_is_shown_for_some_time(services, store):
    with services.reader.connect() as db:
        (row,) = running(db, EVERYTHING)
    asked, seconds = [], 0

    def hear(query):
        nonlocal seconds
        asked.append(query)
        seconds += 40

    with relayed(store, heard=hear) as url:
        measured = live(services, url, stopwatch=lambda: seconds).live
        for passed, times in ((0, 1), (40, 1), (54, 1), (56, 2)):
            (shown,) = measured.rows([row], NOW + passed)
            assert shown["usage_until_time"] == NOW - 50
            assert len(asked) == times


def test_all_connections_of_requests_may_be_in_use(services, store):
    measured = live(services, store).live
    with contextlib.ExitStack() as held:
        requests = [
            held.enter_context(services.reader.connect())
            for _ in range(services.threads.connections())
        ]
        (shown,) = measured.rows(running(requests[0], EVERYTHING), NOW)
    assert shown["usage_until_time"] == NOW - 50


@contextlib.contextmanager
def hanging(release):
    """A store that knows nothing, and says so when it is released; also what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(urllib.parse.urlsplit(self.path).query)

        def do_POST(self):
            self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def answer(self, form):
            asked.append(urllib.parse.parse_qs(form)["query"][0])
            release.wait(20)
            body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            release.set()
            server.shutdown()


def test_a_store_that_hangs_leaves_what_is_stored(services):
    with hanging(threading.Event()) as (url, asked):
        slow = live(services, url, seconds=1.0)
        begun = time.monotonic()
        job = carols(get(slow, "/api/v1/jobs"))
        get(slow, "/api/v1/jobs")  # whose answer is being waited for already
        assert time.monotonic() - begun < 10
        assert job["usage_until_time"] != NOW * 1000
        assert len(asked) == 1
        slow.live.stop()


def test_jobs_of_requests_that_come_meanwhile_are_in_the_next_question(services):
    with services.writer.begin() as db:
        (job,) = db.execute(sa.select(schema.job).where(schema.job.c.jobid == "3")).mappings()
        copies = [{**job, "id": 1000 + n, "jobid": f"{1000 + n}"} for n in range(2)]
        db.execute(sa.insert(schema.job), copies)
        first, second, third = sorted(running(db, EVERYTHING), key=lambda row: row["id"])
    release = threading.Event()
    with hanging(release) as (url, asked):
        measured = live(services, url, seconds=0.01).live
        measured.rows([first], NOW)
        until(lambda: asked, "the first question")
        measured.rows([second], NOW)
        measured.rows([third, first], NOW)
        release.set()
        until(lambda: len(asked) > 1, "the second question")
        measured.stop()
    ids = f"{second['jobid']}|{third['jobid']}"
    assert ids in asked[1], asked


def test_a_question_has_a_limited_number_of_jobs(services):
    with services.reader.connect() as db:
        (row,) = running(db, EVERYTHING)
    release = threading.Event()
    with hanging(release) as (url, asked):
        measured = live(services, url, seconds=0.01).live
        measured.rows([row], NOW)
        until(lambda: asked, "the first question")
        many = [{**row, "id": 10_000 + n, "jobid": str(10_000 + n)} for n in range(3000)]
        with services.writer.begin() as db:
            (job,) = db.execute(
                sa.select(schema.job).where(schema.job.c.id == row["id"])
            ).mappings()
            copies = [{**job, "id": each["id"], "jobid": each["jobid"]} for each in many]
            db.execute(sa.insert(schema.job), copies)
        assert len(measured.rows(many, NOW)) == 3000
        release.set()
        until(lambda: any("|11999" in query for query in asked), "the last that was taken", 60)
        measured.rows(many[2999:], NOW)
        until(lambda: "12999" in asked[-1], "the question after that", 60)
        measured.stop()
    assert not any("12000" in query for query in asked)


def test_figures_of_many_rows_are_those_of_one(services):
    with services.reader.connect() as db:
        rows = running(db, EVERYTHING)
    usage = {"samples": 9, "coverage": 1.0, "until_time": NOW, "user_cpu_seconds": 77.0}
    usage |= {"system_cpu_seconds": 1.0, "nodes": 1, "doubt": ""}
    many = replace_usages(rows, {row["id"]: usage for row in rows})
    for row, made in zip(rows, many, strict=True):
        one = replace_usage(row, usage)
        assert made["cpu_efficiency"] == one["cpu_efficiency"]
        assert {**one, "time_efficiency": None} == {**made, "time_efficiency": None}
