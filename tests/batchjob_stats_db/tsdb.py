"""Real time-series databases, with given samples in their past."""

import contextlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.http_server import Response, serving
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until


def line(metric, value, at, **labels):
    """A sample of a job's series; `at` in epoch seconds."""
    given = {"cluster": "c1", "instance": "n001:10910", "manager": "slurm", "jobid": "1"}
    given |= {"user": "alice"} | labels
    text = ",".join(f'{name}="{value}"' for name, value in given.items())
    return f"batchjob_job_{metric}{{{text}}} {value} {at}"


class RunningStore(NamedTuple):
    """Its URL and its process."""

    url: str
    pid: int


@contextlib.contextmanager
def prometheus(lines, *flags, config="global: {}"):
    """The URL of a Prometheus whose blocks hold the samples."""
    with run_prometheus(lines, *flags, config=config) as store:
        yield store.url


@contextlib.contextmanager
def victoria_metrics(lines, *flags):
    """The URL of a VictoriaMetrics into which the samples were imported."""
    with run_victoria_metrics(lines, *flags) as store:
        yield store.url


SERVERS = [pytest.param(each, id=each.__name__) for each in (prometheus, victoria_metrics)]
"""The servers, for tests parametrized over both."""


@contextlib.contextmanager
def run_prometheus(lines, *flags, config="global: {}"):
    """Like `prometheus`, but with the process id."""
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        pytest.skip("no prometheus is installed")
    with tempfile.TemporaryDirectory(prefix="bj-prom-") as folder:
        home = Path(folder)
        (home / "samples").write_text("".join(f"{each}\n" for each in _grouped(lines)) + "# EOF\n")
        (home / "prometheus.yml").write_text(f"{config}\n")
        create = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
        subprocess.run(create, check=True, cwd=home, capture_output=True)
        (port,) = free_ports(1)
        argv = [
            "prometheus",
            f"--config.file={home}/prometheus.yml",
            f"--storage.tsdb.path={home}/data",
            "--storage.tsdb.retention.time=20y",
            f"--web.listen-address=127.0.0.1:{port}",
            *flags,
        ]
        with daemon(argv, home / "log") as process:
            until(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), "prometheus")
            yield RunningStore(f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def run_victoria_metrics(lines, *flags):
    """Like `victoria_metrics`, but with the process id."""
    program = shutil.which("victoria-metrics")
    if not program:
        pytest.skip("no victoria-metrics is installed")
    with tempfile.TemporaryDirectory(prefix="bj-vm-") as folder:
        (port,) = free_ports(1)
        argv = [
            program,
            f"-storageDataPath={folder}/data",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=20y",
            *flags,
        ]
        url = f"http://127.0.0.1:{port}"
        with daemon(argv, Path(folder) / "log") as process:
            until(lambda: _answers(f"{url}/health"), "victoria-metrics")
            body = "\n".join(_in_milliseconds(each) for each in lines).encode()
            urllib.request.urlopen(
                f"{url}/api/v1/import/prometheus", body, timeout=scaled(10)
            ).close()
            urllib.request.urlopen(f"{url}/internal/force_flush", timeout=scaled(10)).close()
            time.sleep(0.1)
            yield RunningStore(url, process.pid)


@contextlib.contextmanager
def query_relay(url, on_query=lambda query: None, change_answer=lambda content: content):
    """The URL of a relay to a store, which reports the queries and may change the answers."""

    def relay(request):
        (query,) = request.form["query"]
        on_query(query)
        form = request.body or request.query.encode()
        with urllib.request.urlopen(
            urllib.request.Request(url + request.path, form), timeout=scaled(10)
        ) as answer:
            return Response(change_answer(answer.read()))

    with serving(relay) as server:
        yield server.url


def _grouped(lines):
    """OpenMetrics requires each family and series in one block, ordered by time."""
    return sorted(lines, key=lambda each: (each.split("} ")[0], float(each.rsplit(" ", 1)[1])))


def _in_milliseconds(text):
    head, at = text.rsplit(" ", 1)
    return f"{head} {int(float(at) * 1000)}"


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
