"""Tasks of Celery are recorded, by a real worker."""

import logging
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("celery")

import batchjob
from batchjob.schedulers.states import JobState
from tests.helpers.processes import end
from tests.helpers.waiting import scaled, until

TASKS = """
import os, time
from celery import Celery
from batchjob.celery import follow

folder = {folder!r}
app = Celery("tasks", broker="filesystem://", backend="file://" + folder + "/results")
app.conf.broker_transport_options = dict(
    data_folder_in=folder + "/queue", data_folder_out=folder + "/queue",
    control_folder=folder + "/control",
)
app.conf.worker_hijack_root_logger = False
follow(app, arguments=True)

@app.task
def add(a, b):
    until = time.process_time() + 0.1
    while time.process_time() < until: pass
    return a + b

@app.task
def broken():
    raise ValueError("no such column")

@app.task(soft_time_limit=1, time_limit=30)
def soft_timeout():
    time.sleep(20)

@app.task(time_limit=1)
def hard_timeout():
    time.sleep(20)

@app.task(bind=True, max_retries=2, default_retry_delay=0)
def flaky(self):
    if self.request.retries < 1:
        raise self.retry(exc=OSError("not yet"), countdown=0)
    return "at last"

@app.task
def lost():
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def recorded_runs(tmp_path_factory):
    """The recorded runs by task name, after a worker has run one task of each kind."""
    folder = tmp_path_factory.mktemp("celery")
    for name in ("queue", "results", "control"):
        (folder / name).mkdir()
    (folder / "tasks.py").write_text(TASKS.format(folder=str(folder)))
    environment = {**os.environ, "BATCHJOB_DATA": str(folder / "data"), "C_FORCE_ROOT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((os.getcwd(), str(folder)))
    others = "tasks.broken, tasks.soft_timeout, tasks.hard_timeout, tasks.flaky, tasks.lost"
    send = f"import tasks\ntasks.add.delay(2, b=3)\nfor t in ({others}): t.delay()"
    subprocess.run([sys.executable, "-c", send], env=environment, cwd=folder, check=True)
    with (folder / "log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "prefork", "-c", "2",
             "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO"],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until(lambda: len(_ended_runs(folder)) >= 7, f"seven runs: {folder / 'log'}", 60, 0.2)
        runs = _ended_runs(folder)
    finally:
        end(worker)
    assert len(runs) == 7
    return {f"{run.name.removeprefix('tasks.')}{run.restarts or ''}": run for run in runs}


def _ended_runs(folder):
    return [run for run in batchjob.history(data=str(folder / "data")) if not run.state.is_live
            and run.state != JobState.VANISHED]  # fmt: skip


def test_successful_task_is_recorded(recorded_runs):
    run = recorded_runs["add"]
    assert (run.status, run.tool, run.by, run.restarts) == ("success", "tasks", "celery", 0)
    assert run.parameters == '{"args": [2], "kwargs": {"b": 3}}'
    assert 0.1 <= run.cpu_seconds < 5
    assert run.peak_memory_bytes > 1 << 20
    assert run.record_id != run.jobid
    assert (run.has_result, run.result_type) == (True, "int")


@pytest.mark.parametrize(
    ("name", "state", "status", "error"),
    [
        ("broken", JobState.FAILED, "error", "ValueError: no such column"),
        ("soft_timeout", JobState.TIMEOUT, "timeout", "SoftTimeLimitExceeded"),
        ("hard_timeout", JobState.TIMEOUT, "timeout", "TimeLimitExceeded"),
        ("lost", JobState.FAILED, "error", "WorkerLostError"),
        ("flaky", JobState.REQUEUED, "retry", "not yet"),
        ("flaky1", JobState.COMPLETED, "success", ""),
    ],
)
def test_end_of_task_is_recorded(recorded_runs, name, state, status, error):
    run = recorded_runs[name]
    assert (run.state, run.status) == (state, status)
    assert error in run.error
    assert run.has_result == (status == "success")
    assert run.end_time is not None


def test_attempts_share_record_id_and_time_limit_is_recorded(recorded_runs):
    assert recorded_runs["flaky"].record_id == recorded_runs["flaky1"].record_id
    assert recorded_runs["soft_timeout"].time_limit_seconds == 1
    assert recorded_runs["hard_timeout"].time_limit_seconds == 1


def test_eager_task_is_recorded(tmp_path, monkeypatch, caplog):
    """With task_always_eager, as in the tests of applications."""
    from celery import Celery

    from batchjob.celery import follow

    caplog.set_level(logging.INFO)
    monkeypatch.setenv("BATCHJOB_DATA", str(tmp_path))
    app = Celery("eager", set_as_current=False)
    app.conf.task_always_eager = True
    follow(app)

    @app.task(name="eager.double")
    def double(x):
        return 2 * x

    assert double.delay(4).get() == 8
    (run,) = batchjob.history()
    assert (run.name, run.status, run.parameters) == ("eager.double", "success", "")
    assert "eager.double: success after" in caplog.text


def run_eagerly(tmp_path, monkeypatch, names, **options):
    """The recorded tools by name of a task, after a run of a task with each of these names."""
    from celery import Celery

    from batchjob.celery import follow

    monkeypatch.setenv("BATCHJOB_DATA", str(tmp_path))
    app = Celery(tmp_path.name, set_as_current=False)  # each follow() has the tasks of its own app
    app.conf.task_always_eager = True
    follow(app, **options)

    def three():
        return 3

    for name in names:
        assert app.task(name=name, shared=False)(three).delay().get() == 3
    return {run.name: run.tool for run in batchjob.history()}


def test_statistics_by_tool_tell_tasks_apart(tmp_path, monkeypatch):
    tools = {"mesh.cut": "gmsh", "mesh.join": "gmsh", "flow.solve": "su2"}
    assert run_eagerly(tmp_path, monkeypatch, tools, tool=tools) == tools
    assert {row.key: row.runs for row in batchjob.stats(by="tool")} == {"gmsh": 2, "su2": 1}


def test_function_names_tool_of_task(tmp_path, monkeypatch):
    def queue(task):
        return task.name.split(".")[0]

    tools = run_eagerly(tmp_path, monkeypatch, ("mesh.cut", "flow.solve"), tool=queue)
    assert tools == {"mesh.cut": "mesh", "flow.solve": "flow"}


@pytest.mark.parametrize(
    "tool",
    [{}, {"mesh.cut": 7}, lambda task: task.missing, lambda task: None],
    ids=["mapping without it", "no text", "function that fails", "none"],
)
def test_task_without_named_tool_has_its_module(tmp_path, monkeypatch, caplog, tool):
    assert run_eagerly(tmp_path, monkeypatch, ["mesh.cut"], tool=tool) == {"mesh.cut": __name__}
    assert all("follow()" in record.getMessage() for record in caplog.records)


def test_tool_that_is_neither_mapping_nor_function_is_refused():
    from celery import Celery

    from batchjob.celery import follow

    with pytest.raises(TypeError, match=r"tool: expected a mapping .* got 'gmsh'"):
        follow(Celery("eager", set_as_current=False), tool="gmsh")


WORKFLOWS = """
from celery import Celery
from batchjob.celery import follow

app = Celery("site", broker={broker!r}, backend={backend!r})
app.conf.worker_hijack_root_logger = False
follow(app)

@app.task
def one(x=0):
    return 1

@app.task
def two(x):
    return x + 1

@app.task
def total(xs):
    return sum(xs)

@app.task
def bad():
    raise ValueError("no mesh")
"""

SEND = f"""
LIMIT = {scaled(60)}
import site_tasks as s
from celery import chain, chord, group

chained = chain(s.one.s(), s.two.s(), s.two.s()).apply_async()
chorded = chord([s.one.s(), s.one.s()], s.total.s()).apply_async()
grouped = group(s.one.s(), s.two.s(5)).apply_async()
failed = s.bad.delay()
alone = s.one.delay()
assert chained.get(timeout=LIMIT) == 3
assert chorded.get(timeout=LIMIT) == 2
assert grouped.get(timeout=LIMIT) == [1, 6]
alone.get(timeout=LIMIT)
failed.wait(timeout=LIMIT, propagate=False)
print(chained.id, chorded.id, grouped.id, failed.id, alone.id)
"""


def run_workflows(folder, broker, backend):
    """Run the workflows with a worker; returns the ids that they were sent with, and its log."""
    (folder / "site_tasks.py").write_text(WORKFLOWS.format(broker=broker, backend=backend))
    environment = {**os.environ, "BATCHJOB_DATA": str(folder / "data"), "C_FORCE_ROOT": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((os.getcwd(), str(folder)))
    with (folder / "log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "site_tasks", "worker", "-P", "prefork", "-c",
             "2", "-l", "INFO"],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        sent = subprocess.run(
            [sys.executable, "-c", SEND], env=environment, cwd=folder, capture_output=True,
            text=True, timeout=scaled(120), check=False,
        )  # fmt: skip
        assert sent.returncode == 0, sent.stderr + (folder / "log").read_text()[-4000:]
    finally:
        end(worker)
    return sent.stdout.split(), (folder / "log").read_text()


@pytest.fixture
def redis(tmp_path):
    """Run a Redis server; returns the path of its socket."""
    if shutil.which("redis-server") is None:
        pytest.skip("Debian's redis-server is not installed")
    pytest.importorskip("redis")
    socket = tmp_path / "redis.sock"
    argv = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "",
            "--dir", str(tmp_path)]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as server:
        try:
            until(socket.exists, "Redis", 30)
            yield socket
        finally:
            end(server)


def test_workflows_are_recorded_with_redis(tmp_path, redis):
    (chain, chord, group, failed, alone), log = run_workflows(
        tmp_path, f"redis+socket://{redis}", f"redis+socket://{redis}"
    )
    data = str(tmp_path / "data")

    def run_of(task_id):
        return batchjob.job(task_id, data)

    def task_names(workflow):
        runs = batchjob.history(workflow=workflow, data=data)
        return sorted(run.name.removeprefix("site_tasks.") for run in runs)

    assert task_names(run_of(chain).workflow) == ["one", "two", "two"]
    assert task_names(run_of(chord).workflow) == ["one", "one", "total"]
    assert task_names(group) == ["one", "two"]
    assert (run_of(failed).status, run_of(failed).error) == ("error", "ValueError: no mesh")
    assert (run_of(alone).workflow, run_of(alone).status) == ("", "success")
    assert "site_tasks.one: started" in log
    assert "site_tasks.one: success after" in log


def test_task_is_recorded_with_memory_broker(tmp_path, monkeypatch):
    """Worker and sender share a process, as in the tests of applications."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    from batchjob.celery import follow

    monkeypatch.setenv("BATCHJOB_DATA", str(tmp_path))
    app = Celery("inside", broker="memory://", backend="cache+memory://", set_as_current=False)
    follow(app)

    @app.task(name="inside.double")
    def double(x):
        return 2 * x

    with start_worker(app, perform_ping_check=False, shutdown_timeout=scaled(30)):
        sent = double.delay(4)
        assert sent.get(timeout=scaled(30)) == 8
    run = batchjob.job(sent.id)
    assert (run.name, run.status, run.tool) == ("inside.double", "success", __name__)
