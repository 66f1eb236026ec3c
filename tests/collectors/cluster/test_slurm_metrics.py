"""Metrics that slurmctld itself exports, read with a token."""

import pytest

from batchjob.schedulers.cluster import ClusterOptions, ClusterReaders
from batchjob.schedulers.slurm.cluster import native_reader, parse_native_metrics
from batchjob.schedulers.slurm.slurmrestd import RestError
from batchjob_exporter.exposition import render
from collectors.cluster.collector import Cluster
from collectors.host import Host
from tests.helpers.http_server import Response, serving

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


@pytest.fixture
def metrics_url():
    """As slurmctld with MetricsAuthUsers: it answers only requests with the token."""

    def answer(request):
        if request.headers.get("X-SLURM-USER-TOKEN") != TOKEN:
            return Response(b"Invalid authentication credential", 401)
        text = ANSWERS.get(request.path)
        return Response(text.encode()) if text else Response(b"denied", 404)

    with serving(answer) as server:
        yield f"{server.url}/metrics"


def exported_lines(options):
    reader = native_reader(options)
    collector = Cluster(Host(), "slurm", ClusterReaders(native=reader), options)
    collector.refresh()
    return render(collector.collect()).decode().splitlines()


def test_slurm_metrics_keep_their_names(metrics_url, tmp_path):
    token = tmp_path / "jwt"
    token.touch(0o600)
    token.write_text(f"SLURM_JWT={TOKEN}\n")
    options = ClusterOptions(slurm_metrics_url=metrics_url, slurmrestd_token_file=str(token))
    lines = exported_lines(options)
    assert "slurm_nodes 3" in lines
    assert 'slurm_node_cpus_alloc{node="gpu-02"} 32' in lines
    assert "# HELP slurm_node_cpus_alloc Allocated cpus in the node" in lines
    assert not [line for line in lines if line.startswith(("batchjob_jobs", "slurm_bf_active"))]
    assert not [line for line in lines if line.startswith("slurm_user_jobs")]
    lines_with_users = exported_lines(
        ClusterOptions(slurm_metrics_url=metrics_url, slurmrestd_token_file=str(token), users=True)
    )
    assert 'slurm_user_jobs{username="a\\"b"} 1' in lines_with_users


def test_missing_token_is_an_error_and_exports_nothing(metrics_url):
    options = ClusterOptions(slurm_metrics_url=metrics_url)
    with pytest.raises(RestError, match=r"/metrics/jobs: HTTP 401: Invalid authentication"):
        native_reader(options)()
    lines = exported_lines(options)
    assert 'batchjob_cluster_errors_total{part="native"} 1.0' in lines
    assert not [line for line in lines if line.startswith("slurm_")]


@pytest.mark.parametrize("text", ["<html>", "slurm_x one\n", "\x00\n"])
def test_invalid_exposition_is_rejected(text):
    with pytest.raises(RestError, match="not metrics"):
        list(parse_native_metrics(text))


def test_no_sample_is_dropped_or_renamed(recorded_output):
    """All five paths of 26.05.3, and counters with and without _total."""
    texts = recorded_output("slurm-26.05/metrics.txt").decode().split("# EOF\n")
    names = {name: samples for text in texts for name, _, samples in parse_native_metrics(text)}
    expected = [
        line.partition(" ")[0].partition("{")[0]
        for text in texts
        for line in text.splitlines()
        if line.startswith("slurm_")
    ]
    assert len(set(expected)) == 259
    assert sum(map(len, names.values())) == len(expected)
    assert set(names) == set(expected)
    counters = "# TYPE slurm_a counter\nslurm_a 1\n# TYPE slurm_b_total counter\nslurm_b_total 2\n"
    assert [(name, samples) for name, _, samples in parse_native_metrics(counters)] == [
        ("slurm_a", (({}, 1.0),)), ("slurm_b_total", (({}, 2.0),)),
    ]  # fmt: skip
