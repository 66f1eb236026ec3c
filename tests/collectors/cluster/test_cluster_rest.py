"""The Slurm cluster by slurmrestd, on recorded answers of Slurm 24.11."""

import http.server
import json
import threading

import pytest

from batchjob.runtime.background import AbsentError
from batchjob.runtime.subprocesses import parse_json_object
from batchjob.schedulers.cluster import ClusterOptions
from batchjob.schedulers.slurm.slurmrestd import RestError
from batchjob_exporter.exposition import render
from collectors.cluster.collector import build, find_readers
from collectors.host import Host
from tests.helpers.waiting import scaled


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from `server.answers`: path below /slurm/v0.0.42 to document or status code."""

    def do_GET(self):
        answer = self.server.answers.get(self.path.removeprefix("/slurm/v0.0.42/"), 404)
        body = b"no" if isinstance(answer, int) else json.dumps(answer).encode()
        self.send_response(answer if isinstance(answer, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def slurmrestd(recorded_output):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers = {
        "ping": {"errors": []},
        "nodes": parse_json_object(recorded_output("slurm-24.11/scontrol_show_nodes.json")),
        "jobs": parse_json_object(recorded_output("slurm-24.11/squeue.json")),
        "diag": parse_json_object(recorded_output("slurm-24.11/sdiag.json")),
        "licenses": {"licenses": [], "errors": []},
        "reservations": 500,
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def options_for(server):
    return ClusterOptions(
        slurmrestd_url=f"http://127.0.0.1:{server.server_address[1]}", timeout=scaled(5)
    )


def test_available_parts_are_exported(slurmrestd):
    collector = build(Host(), options_for(slurmrestd), {})
    collector.refresh()
    lines = render(collector.collect()).decode().splitlines()
    assert 'batchjob_cluster_node_gpus_allocated{node="node01"} 2.0' in lines
    assert 'batchjob_cluster_jobs{partition="batch",state="PENDING"} 1.0' in lines
    assert 'batchjob_cluster_rpc_user_calls_total{user="bob"} 24.0' in lines
    assert 'batchjob_cluster_errors_total{part="reservations"} 1.0' in lines
    assert 'batchjob_cluster_errors_total{part="nodes"} 0.0' in lines


def test_part_missing_in_the_api_version_is_retried_after_an_hour(slurmrestd):
    _, readers = find_readers(options_for(slurmrestd))
    with pytest.raises(AbsentError) as caught:
        readers.fairshare()
    assert caught.value.seconds == 3600
    with pytest.raises(RestError, match="HTTP 500"):
        readers.reservations()
