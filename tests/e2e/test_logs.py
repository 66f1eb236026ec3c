"""VictoriaLogs takes what the sinks of deploy/logs send, and answers the query of docs/logs.md.

The lines are real ones of a daemon and of a job, with the fields that Vector's sources give them;
Vector itself is in no package.
"""

import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.e2e import exporter, victorialogs
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
HOST, CLUSTER = socket.gethostname(), "alpha"


@pytest.fixture(scope="module")
def store(tmp_path_factory, long_form):
    if not long_form:
        pytest.skip("only with --long")
    if why_not := victorialogs.missing():
        pytest.skip(why_not)
    with victorialogs.store(tmp_path_factory.mktemp("logs") / "store") as made:
        yield made


def sink(name: str) -> dict[str, Any]:
    """Of a file, for this cluster."""
    text = (REPOSITORY / "deploy/logs" / f"{name}.yaml").read_text()
    assert "cluster=cluster " in text
    text = text.replace("cluster=cluster ", f"cluster={CLUSTER} ")
    return yaml.safe_load(text)["sinks"]["victorialogs"]


def send(store, name, events):
    chosen = sink(name)
    (endpoint,) = chosen["endpoints"]
    assert chosen["compression"] == "gzip"
    now = datetime.now(UTC)
    stamped = [{"timestamp": now.isoformat(), **each} for each in events]
    store.send_bulk(urlsplit(endpoint).path, chosen["query"], stamped)


def query_lines(store, query):
    return until(lambda: store.query(query), query, 60, 0.5)


@pytest.fixture(scope="module")
def daemons_lines():
    """What the exporter says when it starts."""
    with exporter.running("--collector.disable-defaults", "--collector.node") as running:
        return until(lambda: running.log.read_text().splitlines(), "lines of the log")


def test_documented_queries_find_daemon_and_job_lines(store, daemons_lines, tmp_path):
    output = call("sh", "-c", "echo epoch 1; echo loss 0.5")
    journal = {"host": HOST, "_SYSTEMD_UNIT": "batchjob_exporter.service", "PRIORITY": "6"}
    file = {"host": HOST, "file": "/scratch/logs/alice/slurm-1.out", "source_type": "file"}
    send(store, "vector", [{**journal, "message": line} for line in daemons_lines])
    send(store, "vector", [{**file, "message": line} for line in output.splitlines()])
    (block,) = re.findall(r'```\n(\{cluster="alpha".*?)```', _documentation_page(), re.DOTALL)
    now = datetime.now(UTC)
    begin, end = (f"{now + timedelta(hours=h):%Y-%m-%dT%H:%MZ}" for h in (-1, 1))
    query = block.strip().replace("n001", HOST)
    query = query.replace("2026-01-31T10:00Z", begin).replace("2026-01-31T11:00Z", end)
    expected = {*daemons_lines, "epoch 1", "loss 0.5"}
    until(
        lambda: expected <= {line["_msg"] for line in store.query(query)}, "lines of the hour", 60
    )
    (stream,) = {each["_stream"] for each in query_lines(store, f'{{file="{file["file"]}"}}')}
    assert stream == f'{{cluster="{CLUSTER}",file="{file["file"]}",host="{HOST}"}}'
    units = {
        each["_stream"]
        for each in query_lines(store, '{_SYSTEMD_UNIT="batchjob_exporter.service"}')
    }
    assert len(units) == 1


def test_pod_log_stream_labels(store, daemons_lines):
    pod = {
        "pod_namespace": "monitoring",
        "pod_name": "batchjob-server-0",
        "container_name": "server",
    }
    send(
        store, "vector-kubernetes",
        [{"message": line, "stream": "stderr", "kubernetes": pod} for line in daemons_lines],
    )  # fmt: skip
    lines = query_lines(store, '{kubernetes.pod_name="batchjob-server-0"}')
    assert {each["_msg"] for each in lines} == set(daemons_lines)
    (stream,) = {each["_stream"] for each in lines}
    for name, value in {
        "cluster": CLUSTER,
        **{f"kubernetes.{k}": v for k, v in pod.items()},
    }.items():
        assert re.search(rf'"?{re.escape(name)}"?="{value}"', stream), stream


def _documentation_page() -> str:
    return (REPOSITORY / "docs/logs.md").read_text()
