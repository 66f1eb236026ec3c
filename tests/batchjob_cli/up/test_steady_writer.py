"""A run that writes 8 MiB each second, from its process' counters to what people see of it."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchjob.local_runs import record
from batchjob.runtime.logins import login_of
from batchjob.schedulers.states import JobState
from batchjob_cli.main import main
from batchjob_stats_db.samples.recorder import Recorder, RecorderOptions
from collectors.job_samples import samples_reader
from collectors.jobs import collector
from tests.batchjob_cli.served_data import serve_data
from tests.collectors.jobs.nodes import Node

RUN = "0f8fad5b-d9cb-469f-a165-70867728950e"
UID = os.geteuid() or 1000  # root's runs are looked at more often at first
MIB = 1 << 20
SPEED = 8 * MIB  # bytes per second
SECONDS = 100


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node")
    yield node
    for each in node.collectors:
        each.stop()


@pytest.fixture
def data(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its samples, every 5 s, and its record; its last seconds are in no sample."""
    monkeypatch.setattr(collector, "SCAN_WAIT_SECONDS", 60.0)  # the machine may be busy
    folder = tmp_path / "data"
    (folder / "runs").mkdir(parents=True)
    begin = node.now = int(time.time()) - 3600.0
    node.add_process(10, uid=UID, io=(0, 0, 0, 0))
    os.chown(node.add_job(f"run-{RUN}", "batchjob.slice", pids=[10]), UID, -1)
    jobs = node.collector()
    jobs.start()
    jobs.update()  # its seconds are shorter than ours: none passes before it is seen
    read_samples = samples_reader([jobs])
    assert read_samples is not None
    recorder = Recorder(
        read_samples, folder / "samples", RecorderOptions(), node.host.clock,
        node.host.monotonic, folder / "runs",
    )  # fmt: skip
    for second in range(SECONDS):
        node.now = begin + second
        node.add_process(10, uid=UID, io=(0, second * SPEED, 0, 0))
        if second % 5 == 0:
            recorder.record()
    node.now = begin + SECONDS + 15  # when its processes are looked at in any case
    node.remove_process(10)
    node.add_job(f"run-{RUN}", "batchjob.slice")  # it has no process any more
    jobs.update()
    record.write(folder / "runs", finished_run(begin))
    recorder.record()
    recorder.stop()
    return folder


def finished_run(begin: float) -> record.Run:
    return record.Run(
        jobid=RUN, node=os.uname().nodename, user=login_of(UID), uid=UID, name="writer",
        submit_time=begin, start_time=begin, end_time=begin + SECONDS, state=JobState.COMPLETED,
        exit_code=0, supervisor=record.SupervisorProcess(1, 1, "gone"), user_cpu_seconds=1.0,
        system_cpu_seconds=0.5, read_bytes=0, written_bytes=SECONDS * SPEED,
    )  # fmt: skip


def test_write_curve_is_steady(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its first to its last stretch: a sample has what its process has written by then."""
    with serve_data(data) as client:
        rows = client.get(f"/api/v1/jobs/{RUN}/metrics", params={"metric": "file_write"}).json()
    means = [row["mean"] for row in rows]
    assert len(means) == SECONDS / 5
    assert means == [pytest.approx(SPEED)] * len(means)
    assert main(["metrics", RUN, "--json", "--no-follow", f"--data={data}"]) == 0
    samples = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rates = [sample.get("process_io_written_bytes_per_second") for sample in samples]
    assert rates[2:-1] == [pytest.approx(SPEED)] * (len(rates) - 3)


def test_last_seconds_are_in_totals(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_data(data) as client:
        (row,) = client.get("/api/v1/jobs").json()
        page = client.get(f"/jobs/{RUN}").text.replace("\u202f", " ")
    assert row["usage_process_io_written_bytes"] == 800 * MIB
    assert "800 MiB written" in page
    assert main(["job", RUN, f"--data={data}"]) == 0
    assert "800 MiB written" in capsys.readouterr().out
