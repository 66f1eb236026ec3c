"""The Slurm cluster by slurmrestd, on recorded answers of Slurm 24.11."""

import pytest

from batchjob.runtime.background import AbsentError
from batchjob.runtime.subprocesses import parse_json_object
from batchjob.schedulers.cluster import ClusterOptions
from batchjob.schedulers.slurm.slurmrestd import RestError
from batchjob_exporter.exposition import render
from collectors.cluster.collector import COLLECTOR, find_readers
from collectors.host import Host
from tests.helpers.http_server import Response, json_response, serving
from tests.helpers.waiting import scaled


@pytest.fixture
def slurmrestd(recorded_output):
    """Answers by the path below /slurm/v0.0.42: a document, or the status of an error."""
    answers = {
        "ping": {"errors": []},
        "nodes": parse_json_object(recorded_output("slurm-24.11/scontrol_show_nodes.json")),
        "jobs": parse_json_object(recorded_output("slurm-24.11/squeue.json")),
        "diag": parse_json_object(recorded_output("slurm-24.11/sdiag.json")),
        "licenses": 500,
    }

    def answer(request):
        found = answers.get(request.path.removeprefix("/slurm/v0.0.42/"), 404)
        return Response(b"no", found) if isinstance(found, int) else json_response(found)

    with serving(answer) as server:
        yield server


def options_for(server):
    return ClusterOptions(slurmrestd_url=server.url, timeout=scaled(5))


def test_available_parts_are_exported(slurmrestd):
    collector = COLLECTOR.build(Host(), options_for(slurmrestd), {})
    collector.refresh()
    lines = render(collector.collect()).decode().splitlines()
    assert 'batchjob_cluster_node_gpus_allocated{node="node01"} 2.0' in lines
    assert 'batchjob_cluster_jobs{partition="batch",state="PENDING"} 1.0' in lines
    assert 'batchjob_cluster_rpc_user_calls_total{user="bob"} 24.0' in lines
    assert 'batchjob_cluster_errors_total{part="licenses"} 1' in lines
    assert 'batchjob_cluster_errors_total{part="nodes"} 0' in lines


def test_part_missing_in_the_api_version_is_retried_after_an_hour(slurmrestd):
    _, readers = find_readers(options_for(slurmrestd))
    with pytest.raises(AbsentError) as caught:
        readers.fairshare()
    assert caught.value.seconds == 3600
    with pytest.raises(RestError, match="HTTP 500"):
        readers.licenses()
