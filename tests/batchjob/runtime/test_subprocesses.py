"""Running a scheduler's commands."""

import os
import time

import pytest

from batchjob.runtime.subprocesses import (
    CommandFailedError,
    CommandOutputError,
    CommandTimeoutError,
    SchedulerError,
    call,
)
from tests.helpers.waiting import scaled


def test_output_is_bytes_and_arguments_bypass_shell():
    result = call(["printf", "%s|", "$HOME; rm", "\udcff"], timeout=scaled(5))
    assert result == b"$HOME; rm|\xff|"


def test_environment_is_clean(monkeypatch):
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    monkeypatch.setenv("TZ", "Europe/Paris")
    lines = call(["env"], timeout=scaled(5), extra_environment={"SLURM_TIME_FORMAT": "%s"})
    variables = dict(line.split("=", 1) for line in lines.decode().splitlines())
    assert "SACCT_FORMAT" not in variables
    assert variables["TZ"] == "UTC"
    assert variables["SLURM_CONF"] == "/etc/x"
    assert variables["SLURM_TIME_FORMAT"] == "%s"


def test_failure_reports_status_and_stderr():
    with pytest.raises(CommandFailedError, match="exit status 3: slurm_persist_conn"):
        call(["sh", "-c", "echo slurm_persist_conn >&2; exit 3"], timeout=scaled(5))


def test_killed_program_names_its_signal():
    with pytest.raises(CommandFailedError, match="ended by signal 9"):
        call(["sh", "-c", "kill -9 $$"], timeout=scaled(5))


def test_missing_program():
    with pytest.raises(SchedulerError, match="/nonexistent/sacct: No such file"):
        call(["/nonexistent/sacct"], timeout=scaled(5))


def test_null_byte_in_argument_raises_command_missing_error():
    with pytest.raises(SchedulerError, match="null byte"):
        call(["true", "a\0b"], timeout=scaled(5))


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & wait", "exec >&- 2>&-; sleep 60"])
def test_hanging_program_is_killed_with_its_children(script, tmp_path):
    started_at = time.monotonic()
    with pytest.raises(CommandTimeoutError, match=r" 0\.3 s$"):
        call(["sh", "-c", f"echo $$ > {tmp_path}/pid; {script}"], timeout=0.3)
    assert time.monotonic() - started_at < scaled(10)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_output_limit():
    with pytest.raises(CommandOutputError, match="more than 1 MB"):
        call(["yes"], timeout=scaled(20), output_limit=1_000_000)
