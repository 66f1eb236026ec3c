"""How a real process stops: what is under way ends, nothing new begins, and all in a bound."""

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
from tests.simulated import tsdb


@pytest.fixture
def database():
    with tsdb.serving() as made:
        yield made


@pytest.fixture
def process(path, tmp_path, database):
    """The command, ready, and its port; `process(flag, ...)`."""
    with contextlib.ExitStack() as stack:

        def start(*flags):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            argv = [
                sys.executable, "-m", "batchjob_stats_server", f"--db.url=sqlite:///{path}",
                f"--web.listen-address=127.0.0.1:{port}", f"--tsdb.url={database.url}", *flags,
            ]  # fmt: skip
            made = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
            stack.callback(made.stderr.close)
            stack.callback(made.wait)
            stack.callback(made.kill)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    return made, port
                assert made.poll() is None, made.stderr.read()
                time.sleep(0.05)
            pytest.fail("no answer")

        yield start


class Asked(threading.Thread):
    """A question under way: `status` afterwards, 0 where the connection ended without one."""

    def __init__(self, port, headers):
        super().__init__()
        self._url = f"http://127.0.0.1:{port}/api/v1/prometheus/api/v1/query?query=up"
        self._headers = headers
        self.status = None
        self.start()

    def run(self):
        request = urllib.request.Request(self._url, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.status = answer.status
        except urllib.error.HTTPError as error:
            self.status = error.code
            error.close()
        except OSError:
            self.status = 0


def stop_while_asking(made, port, headers, database):
    """Seconds until the end, the status of what was under way, and the log."""
    asked = Asked(port, headers)
    while not database.asked:
        time.sleep(0.01)
    begun = time.monotonic()
    made.send_signal(signal.SIGTERM)
    refused = False
    while not refused and time.monotonic() < begun + 10 and made.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            refused = True
        time.sleep(0.05)
    assert refused
    said = made.stderr.read()
    made.wait(60)
    asked.join(60)
    return time.monotonic() - begun, asked.status, said


@pytest.fixture
def headers(token):
    return token("vera", TokenRole.VIEWER, expiry_time=int(time.time()) + 3600)


def test_what_is_under_way_ends(process, database, headers):
    database.wait_seconds = 2
    seconds, status, said = stop_while_asking(*process(), headers, database)
    assert (status, seconds < 15) == (200, True)
    assert "Traceback" not in said


def test_what_does_not_end_is_cut_off(process, database, headers):
    database.wait_seconds = 15
    seconds, status, said = stop_while_asking(*process("--web.stop-timeout=1s"), headers, database)
    assert seconds < 15
    assert status in (0, 503)
    assert "Traceback" not in said
