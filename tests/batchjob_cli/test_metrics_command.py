"""`batchjob metrics`: replay, follow, and what people ask for wrongly."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from batchjob.quantities.sample import END, JobSample, SampleHeader, SampleKey
from batchjob_cli.client.sample_table import ABSENCE_REASONS, TYPES, heading, row
from batchjob_cli.main import main
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.replay import SamplePair
from batchjob_stats_db.samples.writer import Writer
from tests.batchjob_stats_db.samples.open_files import close_files
from tests.e2e.reader import text
from tests.helpers.waiting import scaled

T = 1_775_300_000
RUN = "7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa"
ROOT = Path(__file__).parents[2]


def sample(number, at=None, **more):
    values = {
        SampleKey("cpu_user_seconds"): 4.5 * number,
        SampleKey("cpu_system_seconds"): 0.5 * number,
        SampleKey("memory_current_bytes"): 3.0 * (1 << 30),
        SampleKey("io_read_bytes", ("sda",)): 5.0 * (1 << 20) * number,
        SampleKey("io_read_bytes", ("sdb",)): 5.0 * (1 << 20) * number,
        SampleKey("energy_joules", ("host", "active")): 500.0 * number,
    }
    return JobSample(T + 5.0 * number if at is None else at, values | more.get("values", {}))


def open_writer(data, jobid=RUN, user="alice"):
    return Writer(
        folder_of(data / "samples", jobid), SampleHeader("local", jobid, user, "n1", 5.0), T
    )


def write_finished_job(data, jobid=RUN, count=4):
    writer = open_writer(data, jobid)
    for number in range(count):
        ended = {END: T + 5.0 * number} if number == count - 1 else {}
        writer.write(sample(number, values=ended))
    writer.close()
    return writer.path


def run_metrics(capsys, data, *arguments):
    code = main(["metrics", *arguments, f"--data={data}"])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_finished_job_is_replayed(tmp_path, capsys):
    write_finished_job(tmp_path)
    code, (head, *lines), errors = run_metrics(capsys, tmp_path, RUN)
    assert (code, errors) == (0, "")
    assert head.split() == ["TIME", "NODE", "CPU", "%", "MEMORY", "THREADS", "FILES", "READ",
                            "WRITTEN", "GPU", "%", "POWER"]  # fmt: skip
    assert [line.split()[4:8] for line in lines] == [
        ["-", "3", "GiB", "-"], *[["100.0", "3", "GiB", "-"]] * 3,
    ]  # fmt: skip
    assert lines[1].endswith("100.0 W")
    assert len({len(line) for line in (head, *lines)}) == 1  # aligned


def test_table_of_several_nodes_says_which(tmp_path, capsys):
    for node in ("n1", "node-17"):
        header = SampleHeader("local", RUN, "alice", node, 5.0)
        writer = Writer(folder_of(tmp_path / "samples", RUN), header, T)
        writer.write(sample(0, values={END: T}))
        writer.close()
    _, (head, *lines), _ = run_metrics(capsys, tmp_path, RUN)
    assert head.split()[1] == "NODE"
    assert sorted(line.split()[3] for line in lines) == ["n1", "node-17"]


@pytest.mark.parametrize("type", TYPES)
def test_tables_fit_a_narrow_terminal(type):
    pair = SamplePair(SampleHeader("local", RUN, "alice", "n1", 5.0), sample(1), sample(0))
    assert len(heading(type, 60)) <= 60
    line = row(type, pair, width=60).removesuffix(f"  {ABSENCE_REASONS.get(type, '')}")
    assert len(line) == len(heading(type, 60))
    assert len(heading(type, 30)) > 30  # a column remains


@pytest.mark.parametrize("type", TYPES)
def test_every_type_has_an_aligned_table(tmp_path, capsys, type):
    write_finished_job(tmp_path)
    code, lines, _ = run_metrics(capsys, tmp_path, "7b1e", f"--type={type}")
    assert code == 0
    assert len(lines) == 5
    reason = f"  {ABSENCE_REASONS.get(type, '')}"
    assert len({len(line.removesuffix(reason)) for line in lines}) == 1


@pytest.mark.skipif(shutil.which("jq") is None, reason="not installed: jq")
def test_documented_jq_commands(tmp_path):
    path = write_finished_job(tmp_path)
    page = "docs/samples.md"
    found = printed_json_values(text(page, "batchjob metrics 7b1e --json"), tmp_path)
    assert [each["time"] for each in found] == [T, T + 5, T + 10, T + 15]
    assert found[1]["cpu_percent"] == 100
    found = printed_json_values(text(page, "zcat FILE", {"FILE": str(path)}), tmp_path)
    times = [each["time"] for each in found if isinstance(each, dict)]
    assert (found[:4], times, found[-1]) == ([0, 4.5, 9, 13.5], [T, T + 5, T + 10, T + 15], 15)


def printed_json_values(block, data):
    """What a shell prints, as JSON values in a row."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": programs, "BATCHJOB_DATA": str(data), "HOME": str(data)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    decoder, rest, values = json.JSONDecoder(), done.stdout.lstrip(), []
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def test_json_has_values_rates_and_totals(tmp_path, capsys):
    write_finished_job(tmp_path)
    _, lines, _ = run_metrics(capsys, tmp_path, RUN, "--json", "--limit=1")
    (found,) = map(json.loads, lines)
    assert found["time"] == T + 15
    assert found["cpu_percent"] == 100
    assert found["power_watts"] == 100
    assert found["io"]["sda"] == {"read_bytes": 15 << 20, "read_bytes_per_second": 1 << 20}
    assert found["io_total"] == {"read_bytes": 30 << 20, "read_bytes_per_second": 2 << 20}
    assert found["end_time_seconds"] == T + 15


def test_since_and_until_select_samples(tmp_path, capsys):
    write_finished_job(tmp_path, count=10)
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(T + 10))
    until = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(T + 25))
    _, lines, _ = run_metrics(
        capsys, tmp_path, RUN, "--json", f"--since={since}", f"--until={until}"
    )
    assert [json.loads(line)["time"] - T for line in lines] == [10, 15, 20, 25]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["7b1"], 3, "'7b1' matches the ids of 2 jobs: 7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa, 7b1f"),
        (["9"], 3, "no samples of a job '9'"),
        (["7b1f", "--type=x"], 2, "invalid choice: 'x'"),
        (["7b1f", "--since=soon"], 2, "expected a"),
        (["7b1f", "--limit=-1"], 2, "expected a whole number"),
        ([], 2, "required: JOB"),
    ],
)
def test_invalid_arguments_are_one_line_errors(tmp_path, capsys, arguments, status, message):
    write_finished_job(tmp_path)
    write_finished_job(tmp_path, "7b1f")
    code, lines, errors = run_metrics(capsys, tmp_path, *arguments)
    assert (code, lines) == (status, [])
    assert message in errors
    assert errors.startswith("batchjob: ")
    assert errors.count("\n") == 1


def test_damaged_file_is_reported_and_its_samples_are_shown(tmp_path, capsys):
    path = write_finished_job(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    code, lines, errors = run_metrics(capsys, tmp_path, RUN, "--json")
    assert (code, errors) == (0, "")
    assert len(lines) in (2, 3)
    path.write_bytes(path.read_bytes() + b"\xff" * 30)
    code, more, errors = run_metrics(capsys, tmp_path, RUN, "--json")
    assert code == 0
    assert more == lines
    assert f"{path}: partly read" in errors
    assert errors.count("\n") == 1


def test_running_job_is_followed_to_its_end(tmp_path, capsys):
    writer = open_writer(tmp_path)
    writer.write(sample(0, time.time()))

    def write_samples():
        for number in range(1, 6):
            time.sleep(0.1)
            writer.write(sample(number, time.time()))
        writer.write(sample(6, time.time(), values={END: time.time()}))

    thread = threading.Thread(target=write_samples)
    thread.start()
    try:
        code, lines, _ = run_metrics(capsys, tmp_path, RUN, "--json", "-f")
    finally:
        thread.join()
        writer.close()
    assert code == 0
    assert len(lines) == 7


def test_running_job_is_not_followed_into_a_pipe(tmp_path, capsys):
    writer = open_writer(tmp_path)
    writer.write(sample(0, time.time()))
    code, lines, _ = run_metrics(capsys, tmp_path, RUN, "--json")
    writer.close()
    assert (code, len(lines)) == (0, 1)


def test_follow_ends_when_recorder_is_gone(tmp_path, capsys):
    writer = open_writer(tmp_path)
    writer.write(sample(0))
    close_files(tmp_path)
    code, lines, _ = run_metrics(capsys, tmp_path, RUN, "--json", "--follow")
    assert (code, len(lines)) == (0, 1)


def test_interrupt_ends_follow_silently(tmp_path):
    writer = open_writer(tmp_path)
    writer.write(sample(0, time.time()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import sys; from batchjob_cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "metrics", "--follow", RUN, f"--data={tmp_path}"]
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("TIME")
        assert "3 GiB" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=scaled(30))
    writer.close()
    assert (process.returncode, errors) == (130, "")


def test_gpu_table(tmp_path, capsys):
    writer = open_writer(tmp_path)
    of = ("0", "GPU-aa", "")
    values = {
        "gpu_utilization_ratio": 0.93, "gpu_memory_bytes": 20.0 * (1 << 30),
        "gpu_memory_total_bytes": 80.0 * (1 << 30), "gpu_power_watts": 310.0,
        "gpu_temperature_celsius": 64.0, "gpu_sm_clock_hertz": 1.41e9,
        "gpu_memory_clock_hertz": 1.593e9, "gpu_ecc_corrected_errors": 3.0,
        "gpu_ecc_uncorrected_errors": 0.0, "gpu_processes": 2.0,
    }  # fmt: skip
    writer.write(sample(0, values={SampleKey(name, of): each for name, each in values.items()}))
    writer.close()
    _, (head, row), _ = run_metrics(capsys, tmp_path, RUN, "--type=gpu", "--no-follow")
    names, cells = (re.split(r"\s{2,}", text.strip()) for text in (head, row))
    assert dict(zip(names, cells, strict=True)) | {"TIME": ""} == {
        "TIME": "", "NODE": "n1", "GPU %": "93", "MEMORY": "20 GiB", "TOTAL": "80 GiB",
        "% OF TOTAL": "25.0",
        "PROCESSES": "2", "BOARD POWER": "310.0 W", "HOTTEST": "64 °C", "SM CLOCK": "1410 MHz",
        "MEMORY CLOCK": "1593 MHz", "ECC CORR.": "3", "ECC UNCORR.": "0",
    }  # fmt: skip


def test_network_table_explains_missing_values(tmp_path, capsys):
    writer = open_writer(tmp_path)
    counters = {
        SampleKey(f"network_receive_{what}", ("eth0",)): 7.0 for what in ("bytes", "errors")
    }
    for number, values in enumerate(({}, counters)):
        writer.write(sample(number, values=values))
    writer.close()
    _, (_, without, counted), _ = run_metrics(
        capsys, tmp_path, RUN, "--type=network", "--no-follow"
    )
    assert without.endswith(
        "-  not counted: no network namespace of its own, or it may not be read"
    )
    assert counted.endswith("7")
    _, (_, *memory), _ = run_metrics(capsys, tmp_path, RUN, "--type=gpu", "--no-follow")
    assert not any("namespace" in line for line in memory)
