"""What slurmctld shows to Prometheus itself, asked for with a token."""

import http.server
import threading

import pytest

from batchjob.schedulers.cluster import ClusterOptions, ClusterReaders
from batchjob.schedulers.slurm import native_metrics
from batchjob.schedulers.slurm.slurmrestd import RestError
from batchjob_exporter.exposition import render
from collectors.cluster.collector import Cluster
from collectors.host import Host

TOKEN = "eyJ.x.y"
NODES = """\
# HELP slurm_nodes Total number of nodes
# TYPE slurm_nodes gauge
slurm_nodes 3
# HELP slurm_node_cpus_alloc Allocated cpus in the node
# TYPE slurm_node_cpus_alloc gauge
slurm_node_cpus_alloc{node="gpu-01"} 0
slurm_node_cpus_alloc{node="gpu-02"} 32
# EOF
"""
ANSWERS = {
    "/metrics/jobs": "# TYPE slurm_jobs gauge\nslurm_jobs 2\n# EOF\n",
    "/metrics/nodes": NODES,
    "/metrics/partitions": '# TYPE batchjob_jobs gauge\nbatchjob_jobs{manager="x"} 1\n# EOF\n',
    "/metrics/scheduler": "# TYPE slurm_bf_active gauge\nslurm_bf_active NaN\n# EOF\n",
    "/metrics/jobs-users-accts": (
        '# TYPE slurm_user_jobs gauge\nslurm_user_jobs{username="a\\"b"} 1\n# EOF\n'
    ),
}


class Controller(http.server.BaseHTTPRequestHandler):
    """As slurmctld with MetricsAuthUsers: nobody but the one with the token."""

    def do_GET(self):
        known = self.headers["X-SLURM-USER-TOKEN"] == TOKEN
        found = ANSWERS.get(self.path) if known else None
        self.send_response(200 if found else 404 if known else 403)
        body = (found or "denied").encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Controller)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def lines(options):
    reader = native_metrics.reader(options)
    collector = Cluster(Host(), "slurm", ClusterReaders(native=reader), options)
    collector.refresh()
    return render(collector.collect()).decode().splitlines()


def test_they_have_slurms_names(url, tmp_path):
    token = tmp_path / "jwt"
    token.touch(0o600)
    token.write_text(f"SLURM_JWT={TOKEN}\n")
    options = ClusterOptions(slurm_metrics_url=url, slurmrestd_token_file=str(token))
    shown = lines(options)
    assert "slurm_nodes 3" in shown
    assert 'slurm_node_cpus_alloc{node="gpu-02"} 32' in shown
    assert "# HELP slurm_node_cpus_alloc Allocated cpus in the node" in shown
    assert not [line for line in shown if line.startswith(("batchjob_jobs", "slurm_bf_active"))]
    assert not [line for line in shown if line.startswith("slurm_user_jobs")]
    of_users = lines(
        ClusterOptions(slurm_metrics_url=url, slurmrestd_token_file=str(token), users=True)
    )
    assert 'slurm_user_jobs{username="a\\"b"} 1' in of_users


def test_without_the_token_there_is_an_error_and_nothing_else(url):
    options = ClusterOptions(slurm_metrics_url=url)
    with pytest.raises(RestError, match=r"/metrics/jobs: HTTP 403: denied"):
        native_metrics.reader(options)()
    shown = lines(options)
    assert 'batchjob_cluster_errors_total{part="native"} 1.0' in shown
    assert not [line for line in shown if line.startswith("slurm_")]


@pytest.mark.parametrize("text", ["<html>", "slurm_x one\n", "\x00\n"])
def test_what_is_no_exposition_is_refused(text):
    with pytest.raises(RestError, match="not metrics"):
        list(native_metrics.parse(text))
