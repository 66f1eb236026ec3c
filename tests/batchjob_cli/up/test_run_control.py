"""Runs that are started over the API, in directories that others may write to."""

from batchjob.local_runs import history
from batchjob_cli.up.run_control import LocalRunControl
from batchjob_stats_server.run_control import RunRequest
from tests.helpers.waiting import until


def test_modules_in_run_directory_are_not_imported(tmp_path):
    """Somebody else may have put a `json.py` into /tmp."""
    public, data = tmp_path / "public", tmp_path / "data"
    public.mkdir()
    for name in ("json.py", "batchjob_cli.py", "sitecustomize.py"):
        (public / name).write_text("open('taken', 'w').close()\n")
    control = LocalRunControl(data, "here")
    run = control.start(RunRequest(("pwd",), directory=str(public)))
    until(lambda: not history.job(run.jobid, str(data)).state.is_live, "the end of the run")
    ended = history.job(run.jobid, str(data))
    assert (ended.exit_code, ended.work_dir) == (0, str(public))
    assert not (public / "taken").exists()
