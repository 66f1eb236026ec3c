"""`batchjob epilog` prints what the exporter of this node knows of a job."""

import os
import re
import time

import pytest

from batchjob_cli import epilog
from batchjob_cli.main import main
from tests.batchjob_cli.client.local_runs import command_output
from tests.helpers.http_server import Response, serving

J = 'manager="slurm",jobid="17",user="alice"'


@pytest.fixture
def exporter():
    """The URL of an exporter with one job on four CPUs, which has run for 100 s."""
    lines = [
        f"batchjob_job_start_time_seconds{{{J}}} {time.time() - 100:.3f}",
        f'batchjob_job_cpu_seconds_total{{{J},mode="user"}} 150',
        f'batchjob_job_cpu_seconds_total{{{J},mode="system"}} 50',
        f"batchjob_job_cpus{{{J}}} 4",
        f"batchjob_job_memory_peak_bytes{{{J}}} {3 * 2**30}",
        f"batchjob_job_memory_limit_bytes{{{J}}} {4 * 2**30}",
        f'batchjob_job_gpu_busy_seconds_total{{{J},gpu="1",uuid="GPU-a",gpu_instance=""}} 25',
        f'batchjob_job_gpu_observed_seconds_total{{{J},gpu="1",uuid="GPU-a",gpu_instance=""}} 100',
        f'batchjob_job_energy_joules_total{{{J},component="host",kind="active"}} 7200',
        'batchjob_job_cpu_seconds_total{manager="slurm",jobid="18",user="bob",mode="user"} 9999',
    ]
    page = Response("\n".join(lines).encode())
    with serving(lambda request: page if request.path == "/metrics" else Response(status=404)) as (
        url,
        _,
    ):
        yield url


def test_lines_are_of_this_job_and_say_that_they_are_not_final(exporter, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    out = command_output(capsys, epilog, "--exporter", exporter, "--utc")
    head, note, *lines = out.splitlines()
    assert head.startswith(f"batchjob: job 17 on {os.uname().nodename} up to ")
    assert note == "  (this node only, and not final: see `batchjob seff 17` later)"
    assert [re.sub(" +", " ", line.strip()) for line in lines] == [
        "CPU time 0:03:20, 50 % of 4 CPUs",
        "Memory peak 3 GiB of 4 GiB",
        "GPU 1 25 % busy",
        "Energy 2 Wh",
    ]


@pytest.mark.parametrize(
    ("environ", "jobid"),
    [
        ({"PBS_JOBID": "17"}, "17"),
        ({"LSB_JOBID": "17", "LSB_JOBINDEX": "0"}, "17"),
        ({"LSB_JOBID": "17", "LSB_JOBINDEX": "3"}, "17[3]"),
    ],
)
def test_job_is_the_one_that_runs_the_command(exporter, capsys, monkeypatch, environ, jobid):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    status = main(["epilog", "--exporter", exporter])
    out, error = capsys.readouterr()
    assert (status, "job 17 " in out) == (0, True) if jobid == "17" else (3, False)
    assert jobid in out + error


def test_exporter_that_does_not_answer_and_unknown_job_end_with_a_message(exporter, capsys):
    assert main(["epilog", "99", "--exporter", exporter]) == 3
    assert "knows no job 99" in capsys.readouterr().err
    assert main(["epilog", "17", "--exporter", f"{exporter}/elsewhere"]) == 5
    assert "HTTP status 404" in capsys.readouterr().err
    assert main(["epilog", "17", "--exporter", "http://127.0.0.1:9"]) == 5
    assert main(["epilog"]) == 2
