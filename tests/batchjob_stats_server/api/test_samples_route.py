"""Samples of a job over HTTP: replay, follow, download."""

import json
import threading
import time
import tracemalloc

import pytest

from tests.batchjob_stats_server.api.recording import (
    job_sample,
    open_sample_file,
    with_samples,
    write_sample_file,
)
from tests.batchjob_stats_server.conftest import NOW

P = "/api/v1/jobs"
START, END = NOW - 6000, NOW - 3400  # of job 2, bob's


@pytest.fixture
def services(services, tmp_path):
    return with_samples(services, tmp_path / "samples")


@pytest.fixture
def samples(tmp_path):
    return tmp_path / "samples"


def sample_times(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["time"] for line in answer.text.splitlines()]


def test_samples_of_a_job(proxy_client, samples):
    write_sample_file(samples, "2", "bob", [START + 5, START + 10])
    answer = proxy_client("bob").get(f"{P}/2/samples")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    one, two = map(json.loads, answer.text.splitlines())
    assert (one["jobid"], one["node"], one["time"]) == ("2", "n001", START + 5)
    assert two["cpu_percent"] == 100


def test_samples_are_limited_to_the_job_run_and_time_range(proxy_client, samples):
    write_sample_file(
        samples, "2", "bob", [START - 500, START + 5, START + 10, START + 15, NOW + 99999]
    )
    write_sample_file(samples, "2", "mallory", [START + 6, START + 7])
    bob = proxy_client("bob")
    assert sample_times(bob.get(f"{P}/2/samples")) == [START + 5, START + 10, START + 15]
    assert sample_times(bob.get(f"{P}/2/samples?since={START + 8}&until={START + 12}")) == [
        START + 10
    ]


def test_follow_streams_running_job_to_its_end(proxy_client, samples, services):
    begin = NOW - 5000  # of job 3, carol's, which runs
    writer = open_sample_file(samples, "3", "carol", begin)
    writer.write(job_sample(begin + 5))

    def write_later():
        for number in range(2, 5):
            time.sleep(0.2)
            writer.write(job_sample(begin + 5 * number))
        writer.write(job_sample(begin + 25, end_time_seconds=float(begin + 24)))

    thread = threading.Thread(target=write_later)
    thread.start()
    try:
        answer = proxy_client("vera").get(f"{P}/3/samples?follow=true")
    finally:
        thread.join()
        writer.close()
    assert sample_times(answer) == [begin + 5 * number for number in range(1, 6)]
    assert services.streams.running == 0


def test_limit_does_not_load_all_samples_into_memory(proxy_client, samples):
    many = 20_000
    moments = [START + number / 10 for number in range(many)]
    write_sample_file(samples, "2", "bob", moments)
    asker, query = proxy_client("bob"), {"type": "energy"}
    last = sample_times(asker.get(f"{P}/2/samples", params=query | {"limit": 3}))
    assert last == moments[-3:]
    tracemalloc.start()
    try:
        answer = asker.get(f"{P}/2/samples", params=query | {"limit": many})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(answer.text.splitlines()) == many
    assert peak < 4 * len(answer.content)


def test_open_streams_are_limited(proxy_client, samples, services):
    write_sample_file(samples, "2", "bob", [START + 5])
    for other in range(4):
        services.streams.take_now(other)
    answer = proxy_client("bob").get(f"{P}/2/samples")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "too many simultaneous requests to the sample files"
    services.streams.release(0)
    for _ in range(3):
        assert sample_times(proxy_client("bob").get(f"{P}/2/samples")) == [START + 5]


def test_open_streams_per_user_are_limited(proxy_client, samples, services):
    write_sample_file(samples, "2", "bob", [START + 5])
    for _ in range(2):
        services.streams.take_now(("bob", ()))
    answer = proxy_client("bob").get(f"{P}/2/samples")
    assert answer.status_code == 429
    assert answer.json()["detail"] == "expected at most 2 simultaneous requests; try again later"
    assert sample_times(proxy_client("vera").get(f"{P}/2/samples")) == [START + 5]
    services.streams.release(("bob", ()))
    assert sample_times(proxy_client("bob").get(f"{P}/2/samples")) == [START + 5]


def test_job_without_samples_or_of_another_user_gives_none(proxy_client, samples):
    write_sample_file(samples, "2", "bob", [START + 5])
    assert sample_times(proxy_client("bob").get(f"{P}/77/samples")) == []
    assert sample_times(proxy_client("alice").get(f"{P}/2/samples")) == []
    assert sample_times(proxy_client("alice").get(f"{P}/1/samples")) == []


def test_damaged_file_gives_readable_samples(proxy_client, samples):
    path = write_sample_file(samples, "2", "bob", [START + 5, START + 10])
    path.write_bytes(path.read_bytes() + b"\xff" * 20)
    assert sample_times(proxy_client("bob").get(f"{P}/2/samples")) == [START + 5, START + 10]


def test_metrics_route_reads_samples(proxy_client, samples):
    write_sample_file(samples, "2", "bob", list(range(START + 5, START + 105, 5)))
    rows = proxy_client("bob").get(f"{P}/2/metrics?metric=cpu").json()
    assert {row["node"] for row in rows} == {"n001"}
    assert rows[1]["mean"] == pytest.approx(1.0)
    window = {"since": START + 50, "until": START + 70, "metric": "cpu"}
    part = proxy_client("bob").get(f"{P}/2/metrics", params=window).json()
    assert [row["time"] // 1000 - START for row in part] == [55, 60, 65, 70]
    assert [row["mean"] for row in part] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("query", ["follow=perhaps", "format=xml", "since=soon", "page=1"])
def test_invalid_parameter_is_rejected(proxy_client, query):
    assert proxy_client("bob").get(f"{P}/2/samples?{query}").status_code == 422
