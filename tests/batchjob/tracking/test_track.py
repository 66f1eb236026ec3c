"""Work of a program, tracked with `track`, or with `begin_work` and `end_work`."""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time

import pytest

import batchjob
from batchjob import track
from batchjob.schedulers.states import JobState
from batchjob.tracking.work import parameters_json


@pytest.fixture(autouse=True)
def data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHJOB_DATA", str(tmp_path))
    return tmp_path


def burn_cpu(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def only_run():
    (run,) = batchjob.history()
    return run


def test_block_is_recorded(caplog):
    caplog.set_level(logging.INFO)
    with track("resize", tool="pillow", parameters={"width": 800}) as work:
        assert only_run().status == "running"
        burn_cpu(0.1)
        held = bytearray(100 << 20)
        del held
    run = only_run()
    assert run == work.run
    assert (run.name, run.tool, json.loads(run.parameters)) == ("resize", "pillow", {"width": 800})
    assert (run.state, run.status, run.by) == (JobState.COMPLETED, "success", "track")
    assert 0.1 <= run.cpu_seconds < 5
    assert run.duration_seconds >= 0.1
    assert run.peak_memory_bytes > 100 << 20
    assert batchjob.job("resize") == run
    assert caplog.records[-1].levelname == "INFO"
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "resize: started"
    assert re.fullmatch(
        r"resize: success after \d+\.\d{3} s, CPU 0\.\d{3} s user \d\.\d{3} s system, "
        r"peak memory \d+ MiB",
        last,
    )


def test_work_is_found_by_id_and_by_workflow():
    with track("split", id="a1", workflow="order-17"):
        time.sleep(0.002)  # starts are recorded in milliseconds
    with track("merge", id="a2", workflow="order-17"):
        pass
    assert batchjob.job("a2").name == "merge"
    assert [run.name for run in batchjob.history(workflow="order-17")] == ["merge", "split"]


def test_work_is_begun_and_ended_by_id():
    work = batchjob.begin_work("order-17", "import", tool="loader", parameters={"rows": 3})
    assert only_run().status == "running"
    with pytest.raises(ValueError, match="'order-17' has already begun"):
        batchjob.begin_work("order-17")
    run = batchjob.end_work("order-17")
    assert run == only_run() == work.run == batchjob.job("order-17")
    assert (run.status, run.name, run.tool, run.record_id) == (
        "success", "import", "loader", "order-17",
    )  # fmt: skip
    with pytest.raises(LookupError, match="no work 'order-17'"):
        batchjob.end_work("order-17")


@pytest.mark.parametrize(
    ("end_arguments", "status", "error", "exit_code"),
    [
        ({"error": ValueError("no mesh")}, "error", "ValueError: no mesh", None),
        ({"error": "no mesh"}, "error", "no mesh", None),
        ({"status": "failed", "return_code": 3}, "failed", "", 3),
        ({"error": TimeoutError("slow")}, "timeout", "TimeoutError: slow", None),
    ],
)
def test_end_work_records_status_error_and_return_code(end_arguments, status, error, exit_code):
    batchjob.begin_work("1")
    run = batchjob.end_work("1", **end_arguments)
    assert (run.status, run.error, run.exit_code) == (status, error, exit_code)


@pytest.mark.parametrize(
    ("error", "state", "status", "log_level"),
    [
        (ValueError("no such column"), JobState.FAILED, "error", "ERROR"),
        (TimeoutError("too slow"), JobState.TIMEOUT, "timeout", "WARNING"),
        (subprocess.TimeoutExpired("x", 3), JobState.TIMEOUT, "timeout", "WARNING"),
        (SystemExit(3), JobState.FAILED, "failed", "ERROR"),
        (SystemExit("bad input"), JobState.FAILED, "failed", "ERROR"),
        (SystemExit(0), JobState.COMPLETED, "success", "INFO"),
        (subprocess.CalledProcessError(4, "x"), JobState.FAILED, "failed", "ERROR"),
        (KeyboardInterrupt(), JobState.CANCELLED, "cancelled", "INFO"),
        (asyncio.CancelledError(), JobState.CANCELLED, "cancelled", "INFO"),
    ],
)
def test_exception_is_recorded_and_propagates(error, state, status, log_level, caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(type(error)) as caught, track("work"):
        raise error
    assert caught.value is error
    run = only_run()
    assert (run.state, run.status) == (state, status)
    assert caplog.records[-1].levelname == log_level
    assert (run.error == "") == (status == "success")


def test_exit_code_and_signal_are_recorded():
    with track("exit"), pytest.raises(SystemExit):
        raise SystemExit(3)
    for command, expected in (("exit 5", (5, None)), ("kill -9 $$", (None, 9))):
        name = command.split()[0]
        with pytest.raises(subprocess.CalledProcessError), track(name):
            subprocess.run(["sh", "-c", command], check=True)
        run = batchjob.job(name) if name == "kill" else batchjob.history(status="failed")[0]
        assert (run.exit_code, run.exit_signal) == expected


def test_block_marks_its_work_failed_or_timed_out():
    with track("checks") as work:
        work.fail("3 of 40 images are broken", return_code=2)
    run = only_run()
    assert (run.status, run.error, run.exit_code) == ("failed", "3 of 40 images are broken", 2)
    with track("slow") as work:
        work.time_out("gave up after 3 tries")
    assert batchjob.job("slow").state == JobState.TIMEOUT


def test_decorated_function_is_recorded():
    @track
    def plain(x):
        """Doc."""
        return x + 1

    @track("named", tool="t")
    def named():
        raise RuntimeError("no")

    assert (plain(1), plain(2), plain.__doc__) == (2, 3, "Doc.")
    with pytest.raises(RuntimeError):
        named()
    assert [run.status for run in batchjob.history(name="named")] == ["error"]
    assert len(batchjob.history(tool="")) == 2
    (totals, _) = batchjob.stats()
    assert (totals.runs, totals.success_ratio) == (2, 1.0)


def test_type_of_result_is_recorded():
    @track("mesh")
    def mesh():
        return {"cells": "secret"}

    @track("later")
    async def later():
        return [1]

    mesh()
    asyncio.run(later())
    with track("block") as work:
        work.set_result(3.5)
    with track("nothing"):
        pass
    batchjob.begin_work("7", "pair")
    batchjob.end_work("7", result=(1, 2))
    result_types = {run.name: (run.has_result, run.result_type) for run in batchjob.history()}
    assert result_types == {
        "mesh": (True, "dict"), "later": (True, "list"), "block": (True, "float"),
        "nothing": (False, ""), "pair": (True, "tuple"),
    }  # fmt: skip


def test_coroutine_has_its_own_cpu_time():
    @track("busy")
    async def busy():
        for _ in range(5):
            burn_cpu(0.04)
            await asyncio.sleep(0)
        return "done"

    @track("idle")
    async def idle():
        await asyncio.sleep(0.1)

    async def main():
        return await asyncio.gather(busy(), idle())

    assert asyncio.run(main()) == ["done", None]
    assert 0.2 <= batchjob.job("busy").cpu_seconds < 1
    assert batchjob.job("idle").cpu_seconds < 0.1


def test_coroutine_is_cancelled_unless_it_catches_the_cancellation():
    @track("late")
    async def late():
        await asyncio.sleep(60)

    @track("caught")
    async def caught():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "caught"

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late(), 0.05)
        task = asyncio.create_task(caught())
        await asyncio.sleep(0.01)
        task.cancel()
        return await task

    assert asyncio.run(main()) == "caught"
    assert (batchjob.job("late").status, batchjob.job("caught").status) == ("cancelled", "success")


def test_asynchronous_block_is_recorded():
    async def main():
        async with track("block"), asyncio.timeout(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert only_run().status == "success"


def test_thread_has_its_own_cpu_time():
    def work(name, seconds):
        with track(name):
            burn_cpu(seconds)
            barrier.wait()

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=work, args=args) for args in (("a", 0.3), ("b", 0.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.3 <= batchjob.job("a").cpu_seconds < 2
    assert batchjob.job("b").cpu_seconds < 0.1


def test_outer_work_includes_inner_work():
    with track("outer"):
        held = bytearray(200 << 20)
        del held
        with track("inner"):
            burn_cpu(0.05)
    inner, outer = batchjob.job("inner"), batchjob.job("outer")
    assert outer.peak_memory_bytes >= inner.peak_memory_bytes + (150 << 20)
    assert outer.cpu_seconds >= inner.cpu_seconds >= 0.05


def test_cpu_time_includes_child_processes():
    child_program = "import time\nwhile time.process_time() < 0.2: pass"
    with track("child"):
        subprocess.run([sys.executable, "-c", child_program], check=True)
    assert only_run().cpu_seconds >= 0.2


def test_generator_function_is_rejected():
    with pytest.raises(TypeError, match="generator function"):

        @track
        def numbers():
            yield 1


def test_tracker_can_be_reused_but_not_nested():
    tracker = track("x")
    with tracker, pytest.raises(RuntimeError, match="of its own"), tracker:
        pass
    with tracker:
        pass
    assert len(batchjob.history()) == 2


def test_work_continues_when_it_cannot_be_recorded(data_directory, monkeypatch, caplog):
    (data_directory / "file").write_text("")
    monkeypatch.setenv("BATCHJOB_DATA", str(data_directory / "file" / "below"))
    with track("work"):
        result = 1
    assert result == 1
    assert "work is not recorded" in caplog.text


def test_work_of_killed_program_has_vanished():
    program = "import os\nfrom batchjob import track\nwith track('doomed'): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], env=os.environ)
    assert batchjob.job("doomed").status == "vanished"


def test_forked_process_records_its_own_work(data_directory):
    with track("parent"):
        pid = os.fork()
        if pid == 0:
            with track("child"):
                burn_cpu(0.05)
            os._exit(0)
        os.waitpid(pid, 0)
    assert batchjob.job("child").status == "success"
    assert 0.05 <= batchjob.job("child").cpu_seconds < 1


class UnserializableObject:
    def __repr__(self):
        return "<odd>"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, ""),
        ({"a": 1, "b": [True, None]}, '{"a": 1, "b": [true, null]}'),
        ({"a": UnserializableObject()}, '{"a": "<odd>"}'),
        ({(1, 2): 1}, '{"(1, 2)": "1"}'),
        ({"a": "x" * 20_000, "b": 1}, json.dumps({"a": "'" + "x" * 199, "b": "1"})),
    ],
)
def test_parameters_are_encoded_as_json(parameters, text):
    assert parameters_json(parameters) == text


def test_recursive_and_huge_parameters_are_bounded():
    recursive = {}
    recursive["self"] = recursive
    assert json.loads(parameters_json(recursive)) == {"self": "{'self': {...}}"}
    large = {str(n): "x" * 300 for n in range(1000)}
    assert len(parameters_json(large)) < 10_000


def test_import_loads_no_heavy_modules():
    """A program that only tracks its work loads no database, server or asyncio."""
    program = "import sys; from batchjob import track, history; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert not loaded & {"sqlalchemy", "yaml", "asyncio", "prometheus_client", "argparse"}


def test_cpu_time_of_interleaved_asynchronous_blocks_is_unknown():
    async def work(name):
        async with track(name):
            async with track(f"{name}-inside"):
                pass
            await asyncio.sleep(0.05)

    async def main():
        await work("alone")
        await asyncio.gather(work("one"), work("other"))

    asyncio.run(main())
    assert batchjob.job("alone").cpu_seconds is not None
    assert batchjob.job("one").cpu_seconds is None
    assert batchjob.job("one").duration_seconds >= 0.05
