"""A database that accepts connections and says nothing, like a server that has been stopped."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchjob_stats_db.database.engine import parse_url, reader_engine
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled, until


@pytest.fixture
def silent_database():
    """Its URL, and the connections that it has accepted."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener, parse_url(f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x")


def status_of(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=scaled(60)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def accept_all(listener):
    """The connections of all threads: no more come, since each waits for an answer."""
    listener.settimeout(scaled(1))
    accepted = []
    with contextlib.suppress(TimeoutError):
        while True:
            accepted.append(listener.accept()[0])
    return accepted


def test_health_does_not_wait_for_threads_that_wait_for_the_database(services, silent_database):
    listener, url = silent_database
    reader = reader_engine(url, connections=8)
    with serving(services._replace(reader=reader)) as port, ThreadPoolExecutor(20) as clients:
        waiting = [clients.submit(status_of, port, "/-/ready") for _ in range(20)]
        accepted = accept_all(listener)
        assert len(accepted) < len(waiting)  # they share one check
        assert status_of(port, "/-/healthy") == 200
        for each in (listener, *accepted):
            each.close()
        assert {each.result() for each in waiting} == {503}
    reader.dispose()


def test_readiness_takes_no_thread_of_others_while_the_file_system_of_samples_hangs(
    services, monkeypatch
):
    begun, released = threading.Event(), threading.Event()

    def hang(_):
        begun.set()
        return released.wait(scaled(60))

    monkeypatch.setattr(type(services), "has_samples_directory", hang)
    with serving(services) as port, ThreadPoolExecutor(20) as clients:
        waiting = [clients.submit(status_of, port, "/-/ready") for _ in range(20)]
        try:
            assert begun.wait(scaled(20))
            assert status_of(port, "/api/v1/me") == 401
            assert not released.is_set()
            assert {each.result() for each in waiting} == {503}
        finally:
            released.set()
        until(lambda: status_of(port, "/-/ready") == 200)
