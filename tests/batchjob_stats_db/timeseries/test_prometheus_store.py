"""Totals, peaks and means of jobs, queried from real stores."""

import math
import threading

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.timeseries.base import JobWindow, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_db.timeseries.promql import Term, batches, job_selector, union_queries
from batchjob_stats_db.timeseries.resample import total_of
from tests.batchjob_stats_db.samples.stores import STORES
from tests.batchjob_stats_db.tsdb import SERVERS, line, query_relay
from tests.helpers.http_server import Response, serving
from tests.helpers.waiting import scaled

T = 1_775_300_000
CPU = "batchjob_job_cpu_seconds_total"
MEMORY = "batchjob_job_memory_current_bytes"
K = 1024


def series_lines(metric, values, begin=T, step=30, **labels):
    return [line(metric, value, begin + step * n, **labels) for n, value in enumerate(values)]


SAMPLES = [
    # Job 1: two nodes, seen by two replicas, one of which missed the last scrape.
    *series_lines("cpu_seconds_total", [10, 20, 30], mode="user", replica="a"),
    *series_lines("cpu_seconds_total", [10, 20], mode="user", replica="b"),
    *series_lines("cpu_seconds_total", [5, 9], mode="user", instance="n002:10910"),
    *series_lines("memory_current_bytes", [K * 100, K * 300, K * 200], replica="a"),
    *series_lines("memory_current_bytes", [K * 100, K * 300], replica="b"),
    # Job 2 was so short that one scrape saw it.
    *series_lines("cpu_seconds_total", [3.5], mode="user", jobid="2"),
    *series_lines("memory_current_bytes", [K * 77], jobid="2"),
    # Job 3: the counter restarted, and is larger than before at the end.
    *series_lines("cpu_seconds_total", [10, 40, 2, 50], mode="user", jobid="3"),
    # Job 4 was run twice.
    *series_lines("cpu_seconds_total", [1, 8, 8, 8, 1, 5], mode="user", jobid="4"),
    # An LSF array job, and an id that its unescaped form would match as a regular expression.
    *series_lines("cpu_seconds_total", [6], mode="user", jobid="12[3].pbs-1"),
    *series_lines("cpu_seconds_total", [9], mode="user", jobid="123Xpbs-1"),
    # Job 5 on another cluster of the same store.
    *series_lines("cpu_seconds_total", [1000], mode="user", jobid="1", cluster="c2"),
    *series_lines("memory_current_bytes", ["NaN"], jobid="6"),
]


@pytest.fixture(scope="module", params=STORES)
def history(request):
    with request.param(SAMPLES) as opened:
        yield opened


def window(jobid, start=T - 10, until=T + 400, near_other_run=False):
    return JobWindow("c1", jobid, start, until, near_other_run)


def totals(history, *windows):
    wanted = {Statistic.TOTAL: [CPU, "batchjob_job_oom_kills_total"]}
    found = history.measure(wanted, windows)[Statistic.TOTAL]
    return {(s.labels["jobid"], s.labels.get("instance")): s.value for s in found}


def test_replicas_are_counted_once(history):
    assert totals(history, window("1")) == {("1", "n001:10910"): 30, ("1", "n002:10910"): 9}


def test_jobs_of_other_clusters_with_the_same_id_are_excluded(history):
    # So many jobs are queried without the cluster.
    many_jobs = [window("1"), *(window(str(n)) for n in range(100, 120))]
    assert totals(history, *many_jobs) == totals(history, window("1"))
    found = history.last_sample_times([CPU], many_jobs)
    assert {(each.labels["cluster"], each.labels["instance"]) for each in found} == {
        ("c1", "n001:10910"), ("c1", "n002:10910")
    }  # fmt: skip


def test_total_of_one_sample(history):
    assert totals(history, window("2")) == {("2", "n001:10910"): 3.5}


def test_total_across_a_counter_reset(history):
    assert totals(history, window("3")) == {("3", "n001:10910"): 40 + 50}


def test_several_jobs_in_one_query(history):
    found = totals(history, window("1"), window("2"), window("3"))
    assert sum(found.values()) == pytest.approx(30 + 9 + 3.5 + 90)


def test_runs_of_one_id_are_measured_separately(history):
    first = window("4", T - 10, T + 70, near_other_run=True)
    second = window("4", T + 75, T + 400, near_other_run=True)
    assert totals(history, first) == {("4", "n001:10910"): 8}
    assert totals(history, second) == {("4", "n001:10910"): 5}


def test_job_ids_are_matched_literally(history):
    assert list(totals(history, window("12[3].pbs-1"), window("2")).values()) == [6, 3.5]


def test_all_statistics_in_one_query(history):
    wanted = {statistic: [MEMORY, CPU] for statistic in Statistic}
    found = history.measure(wanted, [window("1"), window("2")])

    def values_of(statistic, metric):
        return {
            (sample.labels["jobid"], sample.labels["instance"][:4]): sample.value
            for sample in found[statistic]
            if sample.metric == metric
        }

    assert values_of(Statistic.PEAK, MEMORY) == {("1", "n001"): K * 300, ("2", "n001"): K * 77}
    assert values_of(Statistic.MEAN, MEMORY) == {("1", "n001"): K * 200, ("2", "n001"): K * 77}
    assert values_of(Statistic.COUNT, MEMORY) == {("1", "n001"): 3, ("2", "n001"): 1}
    assert values_of(Statistic.TOTAL, CPU) == {
        ("1", "n001"): 30,
        ("1", "n002"): 9,
        ("2", "n001"): 3.5,
    }
    assert values_of(Statistic.COUNT, CPU) == {("1", "n001"): 3, ("1", "n002"): 2, ("2", "n001"): 1}


def test_nan_is_returned_or_left_out(history):
    found = history.measure({Statistic.PEAK: [MEMORY]}, [window("6")])[Statistic.PEAK]
    assert all(math.isnan(sample.value) for sample in found)


@pytest.mark.parametrize("open_server", SERVERS)
def test_raw_samples_are_read_only_around_counter_resets(open_server):
    rising = [*range(1, 721)]  # six hours, a sample each 30 s
    with_reset = [*rising[:300], *rising[:420]]
    n2 = {"instance": "n002:10910"}
    lines = [
        *series_lines("cpu_seconds_total", rising, T + 30, mode="user"),
        *series_lines("cpu_seconds_total", with_reset, T + 30, mode="user", **n2),
        *series_lines("cpu_seconds_total", rising, T + 30, mode="user", jobid="2"),
    ]
    queries = []
    with open_server(lines) as url, query_relay(url, queries.append) as relay:
        windows = [window(jobid, T, T + 6 * 3600) for jobid in ("1", "2")]
        found = totals(Prometheus(Endpoint(relay)), *windows)
    assert found == {("1", "n001:10910"): 720, ("1", "n002:10910"): 720, ("2", "n001:10910"): 720}
    assert [query for query in queries if "(" not in query] == [
        f'{{__name__="{CPU}", cluster="c1", jobid="1", instance="n002:10910"}}[3600s]'
    ]


@pytest.mark.parametrize("open_server", SERVERS)
def test_refused_query_raises_its_reason(open_server):
    with open_server([]) as url, pytest.raises(TimeSeriesError, match="status 4"):
        Prometheus(Endpoint(url)).ask("query", query="sum(", time=T)


def test_unreachable_server_is_an_error():
    with pytest.raises(TimeSeriesError, match=r"127\.0\.0\.1"):
        Prometheus(Endpoint("http://127.0.0.1:1", timeout_seconds=1)).measure(
            {Statistic.TOTAL: [CPU]}, [window("1")]
        )


def test_batches_separate_runs_and_limit_samples():
    endpoint = Endpoint("http://x", batch_jobs=3)
    windows = [window(str(n)) for n in range(4)] + [window("1", T + 1000, T + 2000)]
    sizes = [len(batch) for batch in batches(windows, endpoint)]
    assert sizes == [3, 2]
    assert [len(b) for b in batches([window("1", near_other_run=True), window("2")], endpoint)] == [
        1,
        1,
    ]
    long = [window(str(n), T - 90 * 86400) for n in range(2)]
    assert [len(batch) for batch in batches(long, endpoint)] == [1, 1]


def test_job_selector_names_jobs_and_for_few_jobs_the_cluster():
    text = job_selector(["a", "b"], [window('1"2'), window("3")])
    assert text == '{__name__=~"a|b", cluster="c1", jobid=~"1\\"2|3"}'
    assert "cluster" not in job_selector(["a"], [window(str(n)) for n in range(11)])


def test_union_queries_are_split_by_length_and_series():
    terms = [Term("last_over_time", ["a", "b"]), *(Term("resets", [f"m{n}"]) for n in range(24))]
    (page,) = union_queries(terms, [window(str(n)) for n in range(25)])
    assert page.count("resets(") == 24
    many = list(union_queries(terms, [window(str(n)) for n in range(10**6, 10**6 + 1000)]))
    assert len(many) == 25
    assert all(len(query) < 16_384 for query in many)
    (large, *_) = union_queries([Term("resets", ["a"]), Term("resets", ["b"])], [big_job(20_000)])
    assert large.count("resets(") == 1
    halves = list(union_queries([Term("last_over_time", ["a", "b", "c"])], [big_job(10_000)]))
    assert [query.count("last_over_time(") for query in halves] == [1, 1]


def big_job(nodes):
    return window("1")._replace(nodes=nodes)


def test_total_of_raw_samples():
    assert total_of([], 0) is None
    assert total_of([(1, 7.0)], 0) == 7
    assert total_of([(1, 5.0), (2, 7.0), (3, 1.0)], 0) == 8
    assert total_of([(-1, 7.0), (1, 7.0), (2, 1.0), (3, 2.0)], 0) == 2  # 7 is of the run before
    assert total_of([(-1, 7.0)], 0) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "timed out"),
        (b"<html>login</html>", "not an answer of a Prometheus API"),
        (b'{"status":"success","data":{"result":[]},"isPartial":true}', "a partial answer"),
        (b"x" * 2000, "more than 1000 bytes"),
    ],
)
def test_slow_or_invalid_answers_are_errors(body, message):
    finished = threading.Event()

    def answer(_request):
        if body is None:
            finished.wait(scaled(10))
        return Response(body or b"", length=False)

    with serving(answer) as server:
        store = Prometheus(Endpoint(server.url, timeout_seconds=0.3, answer_bytes=1000))
        with pytest.raises(TimeSeriesError, match=message):
            store.measure({Statistic.PEAK: [MEMORY]}, [window("1")])
        finished.set()
