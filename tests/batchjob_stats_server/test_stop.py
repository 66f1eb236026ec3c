"""How a real process stops: running requests end, new ones are refused, within a time limit."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from batchjob_stats_db.database.tokens import TokenRole
from tests.helpers.waiting import scaled, until
from tests.simulated import tsdb


@pytest.fixture
def time_series_database():
    with tsdb.serving() as database:
        yield database


@pytest.fixture
def start_server(database_path, tmp_path, time_series_database):
    """Start the server: `process, port = start_server(flag, ...)`."""
    with contextlib.ExitStack() as stack:

        def start(*flags):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
            argv = [
                sys.executable, "-m", "batchjob_stats_server", f"--db.url=sqlite:///{database_path}",
                f"--web.listen-address=127.0.0.1:{port}",
                f"--tsdb.url={time_series_database.url}", *flags,
            ]  # fmt: skip
            process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
            stack.callback(process.stderr.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            until(lambda: process.poll() is not None or listens(port), "the server", 60)
            assert process.poll() is None, process.stderr.read()
            return process, port

        yield start


def listens(port):
    """Whether new connections to the port are accepted."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)).close()
    except OSError:
        return False
    return True


class PendingQuery(threading.Thread):
    """A query that waits for its answer; `status` is 0 if the connection ended without one."""

    def __init__(self, port, headers):
        super().__init__()
        self._url = f"http://127.0.0.1:{port}/api/v1/prometheus/api/v1/query?query=up"
        self._headers = headers
        self.status = None
        self.start()

    def run(self):
        request = urllib.request.Request(self._url, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
                self.status = answer.status
        except urllib.error.HTTPError as error:
            self.status = error.code
            error.close()
        except OSError:
            self.status = 0


def stop_during_query(process, port, headers, time_series_database):
    """Stop the server during a query; returns the seconds it took, the status, and the log."""
    query = PendingQuery(port, headers)
    until(lambda: time_series_database.requests, "the query")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    until(lambda: not listens(port), "no new connections")
    log = process.stderr.read()
    process.wait(scaled(60))
    query.join(scaled(60))
    return time.monotonic() - started, query.status, log


@pytest.fixture
def headers(token_headers):
    return token_headers("vera", TokenRole.VIEWER, expiry_time=int(time.time()) + 3600)


def test_running_request_is_completed_on_stop(start_server, time_series_database, headers):
    time_series_database.wait_seconds = 2
    seconds, status, log = stop_during_query(*start_server(), headers, time_series_database)
    assert (status, seconds < scaled(15)) == (200, True)
    assert "Traceback" not in log


def test_request_longer_than_stop_timeout_is_cut_off(start_server, time_series_database, headers):
    time_series_database.wait_seconds = scaled(15)
    seconds, status, log = stop_during_query(
        *start_server("--web.stop-timeout=1s"), headers, time_series_database
    )
    assert seconds < scaled(15)
    assert status in (0, 503)
    assert "Traceback" not in log
