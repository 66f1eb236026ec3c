"""Runs that are started over the API, in directories that others may write to."""

from batchjob.local_runs import history
from batchjob_cli.up import runs
from batchjob_cli.up.runs import LocalRunControl
from batchjob_stats_server.api.local_runs import NewRun
from tests.helpers.waiting import until


def test_modules_in_run_directory_are_not_imported(tmp_path):
    """Somebody else may have put a `json.py` into /tmp."""
    public, data = tmp_path / "public", tmp_path / "data"
    public.mkdir()
    for name in ("json.py", "batchjob_cli.py", "sitecustomize.py"):
        (public / name).write_text("open('taken', 'w').close()\n")
    control = LocalRunControl(data, "here")
    run = control.start(NewRun(command=["pwd"], directory=str(public)))
    until(lambda: not history.job(run.jobid, str(data)).state.is_live, "the end of the run")
    ended = history.job(run.jobid, str(data))
    assert (ended.exit_code, ended.work_dir) == (0, str(public))
    assert not (public / "taken").exists()


def test_long_grace_period_does_not_hold_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_MAX_WAIT_SECONDS", 0.5)
    control = LocalRunControl(tmp_path / "data", "here")
    script = f"trap '' TERM; touch {tmp_path}/ready; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    run = control.start(NewRun(command=["sh", "-c", script]))
    until((tmp_path / "ready").exists, "the trap")
    assert control.stop(run, 3600).state.is_live
    (tmp_path / "go").touch()
    until(lambda: not history.job(run.jobid, str(tmp_path / "data")).state.is_live, "its end")
