"""Metrics that slurmctld 26.05.3 exposes itself, on its recorded answers."""

import pytest

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.cluster import ClusterOptions, ClusterReaders
from batchjob.schedulers.slurm.cluster import readers
from batchjob_exporter.exposition import render
from collectors.cluster.collector import Cluster
from collectors.host import Host
from tests.helpers.http_server import Response, serving

TOKEN = "eyJ.x.y"
PATHS = ("jobs", "nodes", "partitions", "scheduler", "jobs-users-accts")


@pytest.fixture
def answers(recorded_output):
    """The recorded answers by path; tests may change them."""
    texts = recorded_output("slurm-26.05/metrics.txt").decode().split("# EOF\n")
    return dict(zip(PATHS, texts, strict=False))


@pytest.fixture
def options(answers, tmp_path):
    """A slurmctld with MetricsAuthUsers: it answers only requests with the token."""
    token = tmp_path / "jwt"
    token.touch(0o600)
    token.write_text(f"SLURM_JWT={TOKEN}\n")

    def answer(request):
        if request.headers.get("X-SLURM-USER-TOKEN") != TOKEN:
            return Response(b"Invalid authentication credential", 401)
        text = answers[request.path.removeprefix("/metrics/")]
        return Response(f"{text}# EOF\n".encode())

    with serving(answer) as server:
        yield {"slurm_metrics_url": f"{server.url}/metrics", "slurmrestd_token_file": str(token)}


def exposed_lines(**options):
    """The lines of the part slurmctld alone."""
    chosen = ClusterOptions(**options)
    collector = Cluster(
        Host(), "slurm", ClusterReaders(slurmctld=readers(chosen).slurmctld), chosen
    )
    collector.refresh()
    return render(collector.collect()).decode().splitlines()


def samples_of(lines):
    """Lines of Slurm's samples, with values as numbers."""
    samples = (line.rpartition(" ") for line in lines if line.startswith("slurm_"))
    return sorted((labels, float(value)) for labels, _, value in samples)


def test_every_recorded_sample_keeps_name_labels_and_value(answers, options):
    lines = exposed_lines(**options, users=True)
    recorded = [line for text in answers.values() for line in text.splitlines()]
    assert samples_of(lines) == samples_of(recorded)
    assert len([line for line in lines if line.startswith("# TYPE slurm_")]) == 259
    comments = {line for line in recorded if line.startswith("#")}
    assert comments <= set(lines)


def test_users_have_series_only_if_asked_for(options):
    lines = exposed_lines(**options)
    assert not [line for line in lines if line.startswith("slurm_user_")]
    assert [line for line in lines if line.startswith("slurm_account_")]


def test_counters_and_unknown_values_are_not_renamed_or_dropped(answers, options):
    answers["scheduler"] = (
        "# TYPE slurm_a counter\nslurm_a 1\n# TYPE slurm_b_total counter\nslurm_b_total 2\n"
        'slurm_c{username="a\\"b, }"} NaN 1795745000000\n'
    )
    lines = exposed_lines(**options)
    assert {"slurm_a 1.0", "slurm_b_total 2.0", 'slurm_c{username="a\\"b, }"} NaN'} <= set(lines)


def test_invalid_line_costs_only_itself_and_is_logged(answers, options, caplog):
    answers["jobs"] = 'slurm_jobs 2\nslurm_x{user="a"b"} 1\nbatchjob_jobs 7\nslurm_y one\n'
    lines = exposed_lines(**options)
    assert "slurm_jobs 2.0" in lines
    assert not [line for line in lines if line.startswith(("batchjob_jobs", "slurm_x", "slurm_y"))]
    assert "expected samples of slurm_*, left out 'slurm_x{user=" in caplog.text


def test_refused_request_is_an_error_and_exposes_nothing(options):
    without_token = options | {"slurmrestd_token_file": ""}
    with pytest.raises(SchedulerError, match="/jobs: HTTP 401: Invalid authentication credential"):
        readers(ClusterOptions(**without_token)).slurmctld()
    lines = exposed_lines(**without_token)
    assert 'batchjob_cluster_errors_total{part="slurmctld"} 1' in lines
    assert not samples_of(lines)


@pytest.mark.parametrize("text", ["<html>", "slurm_x one\n", "\x00\n"])
def test_answer_without_a_metric_is_an_error(answers, options, text):
    answers["jobs"] = text
    with pytest.raises(SchedulerError, match="/metrics/jobs: expected metrics, got"):
        readers(ClusterOptions(**options)).slurmctld()
