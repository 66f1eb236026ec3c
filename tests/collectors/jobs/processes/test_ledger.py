"""Sums over a job's processes when the exporter restarts: none falls, nothing counts twice."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.jobs.processes.kernel_counters import KernelState
from collectors.jobs.processes.ledger import ProcessLedger
from collectors.jobs.processes.proc import Process, ProcessCounters, ProcessTotals
from tests.collectors.jobs.nodes import samples
from tests.helpers.waiting import until

MEGABYTE = 10**6
WRITTEN = "process_io_written_bytes_total"


@pytest.fixture
def boot(node):
    path = node.proc / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("first\n")
    return path


@pytest.fixture
def started(node, tmp_path):
    """Starts a collector that keeps its sums in a directory."""

    def start():
        node.host = dataclasses.replace(node.host, state=str(tmp_path))
        jobs = node.collector()
        jobs.start()
        until(lambda: (WRITTEN, "1") in samples(jobs))
        return jobs

    return start


def written_by(node, jobs, pid, megabytes):
    """Let a process of job 1 have written so much, and wait until that is exposed."""
    node.add_process(pid, io=(0, megabytes * MEGABYTE, 0, 0))
    before = samples(jobs)[WRITTEN, "1"]
    node.now += 20
    jobs.scanner.refresh(10)
    until(lambda: samples(jobs)[WRITTEN, "1"] != before)


def test_bytes_of_ended_processes_survive_a_restart(node, boot, started):
    node.add_process(10, io=(0, 5 * MEGABYTE, 0, 0))
    job = node.add_job(pids=[10, 11])
    node.add_process(11, io=(0, 300 * MEGABYTE, 0, 0))
    jobs = started()
    until(lambda: samples(jobs)[WRITTEN, "1"] == 305 * MEGABYTE)
    node.remove_process(10)
    (job / "step_batch/user/task_0/cgroup.procs").write_text("11\n")
    written_by(node, jobs, 11, 310)
    assert samples(jobs)[WRITTEN, "1"] == 315 * MEGABYTE
    for _ in range(3):
        jobs.stop()
        jobs = started()
        assert samples(jobs)[WRITTEN, "1"] == 315 * MEGABYTE
    written_by(node, jobs, 11, 320)
    assert samples(jobs)[WRITTEN, "1"] == 325 * MEGABYTE
    jobs.stop()
    boot.write_text("second\n")
    assert samples(started())[WRITTEN, "1"] == 320 * MEGABYTE


def test_bytes_shown_before_a_kill_are_kept_and_unseen_ends_are_counted(
    node, boot, started, tmp_path
):
    node.add_process(10, io=(0, 5 * MEGABYTE, 0, 0))
    node.add_process(11, io=(0, 300 * MEGABYTE, 0, 0))
    job = node.add_job(pids=[10, 11])
    jobs = started()
    until(lambda: samples(jobs)[WRITTEN, "1"] == 305 * MEGABYTE)
    written_by(node, jobs, 11, 310)
    as_a_kill_leaves_it = (tmp_path / "processes.jsonl").read_bytes()
    jobs.stop()
    (tmp_path / "processes.jsonl").write_bytes(as_a_kill_leaves_it)
    node.remove_process(11)
    (job / "step_batch/user/task_0/cgroup.procs").write_text("10\n")
    again = started()
    assert samples(again)[WRITTEN, "1"] == 315 * MEGABYTE
    assert samples(again)["read_errors_total", "", "ended_unseen"] == 1


def process(pid, written):
    return Process(pid, 1.0, 1, 1000, 1, "a", ProcessCounters(1.0, 1.0, 0.0, written, 0, 0))


def test_bytes_of_a_process_that_ended_during_the_restart_are_kept_as_shown():
    first = ProcessTotals()
    shown = first.update({10: process(10, 5.0), 11: process(11, 300.0)})
    second = ProcessTotals(first.ended, shown)
    assert second.update({11: process(11, 302.0)}).written_bytes == 305.0
    assert second.update({11: process(11, 310.0)}).written_bytes == 313.0


def test_sums_of_unreadable_counters_are_not_invented():
    shown = ProcessCounters(1.0, 1.0, None, None, None, None)
    totals = ProcessTotals(shown=shown)
    sums = totals.update({11: process(11, 7.0)})
    assert sums.written_bytes == 7.0
    unreadable = process(11, 7.0)._replace(counters=shown)
    later = ProcessTotals(totals.ended, sums).update({11: unreadable})
    assert later.written_bytes is None


@given(st.binary(max_size=200), st.integers(0, 300))
def test_arbitrary_and_incomplete_files_are_read(tmp_path_factory, noise, cut):
    directory = tmp_path_factory.mktemp("state")
    key = f"{directory}:7"
    counted = ["", [], []]
    line = json.dumps([key, [1.0] * 6, [2.0] * 6, [1, 1.0], [counted, counted]])
    text = f'"boot"\n{line}\n'.encode() + noise + b"\n" + line.encode()[:cut]
    (directory / "processes.jsonl").write_bytes(text)
    ledger = ProcessLedger(str(directory), "boot")
    ledger.close()
    assert ledger.restore("other:1", KernelState()).ended == (0.0,) * 6
    assert sum(ledger.restore(key, KernelState()).ended) in (0.0, 6.0)


def test_lines_of_an_exporter_without_the_helper_are_read(tmp_path):
    key = f"{tmp_path}:7"
    line = json.dumps([key, [1.0] * 6, [3.0, 3.0, 3.0, 3.0, None, None], [2, 5.0]])
    (tmp_path / "processes.jsonl").write_text(f'"boot"\n{line}\n')
    kernel = KernelState()
    ledger = ProcessLedger(str(tmp_path), "boot")
    ledger.close()
    totals = ledger.restore(key, kernel)
    assert totals.ended == (1.0,) * 6
    assert totals.count_unseen_ends(()) == 2
    assert (kernel.io.shown, kernel.sockets.shown) == ([3.0, 3.0, 0.0, 0.0], [])


def test_line_with_an_infinite_number_is_left_out(tmp_path):
    line = f'["{tmp_path}:7", {[1.0] * 6}, {[1.0] * 6}, [Infinity, 5.0]]'
    (tmp_path / "processes.jsonl").write_text(f'"boot"\n{line}\n')
    ledger = ProcessLedger(str(tmp_path), "boot")
    ledger.close()
    assert ledger.restore(f"{tmp_path}:7", KernelState()).ended == (0.0,) * 6


def test_only_living_runs_are_kept_in_the_file(tmp_path):
    ledger = ProcessLedger(str(tmp_path), "boot")
    counters = ProcessCounters(*[1.0] * 6)
    for number in range(3):
        ledger.save(f"{tmp_path}:{number}", ProcessTotals((1.0,) * 6), counters, KernelState())
    ledger.save("/no/such/directory:1", ProcessTotals((1.0,) * 6), counters, KernelState())
    ledger.compact({f"{tmp_path}:1"})
    ledger.close()
    assert len((tmp_path / "processes.jsonl").read_text().splitlines()) == 2
    again = ProcessLedger(str(tmp_path), "boot")
    again.close()
    assert again.restore(f"{tmp_path}:1", KernelState()).ended == (1.0,) * 6
    assert again.restore(f"{tmp_path}:2", KernelState()).ended == (0.0,) * 6


def test_unwritable_directory_is_reported_and_costs_nothing_else(tmp_path, caplog):
    ledger = ProcessLedger(str(tmp_path / "missing"), "boot")
    ledger.save("x:1", ProcessTotals(), ProcessCounters(*[1.0] * 6), KernelState())
    assert caplog.text.count("sums of ended processes will be lost") == 1
