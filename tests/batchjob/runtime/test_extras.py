"""A command with missing libraries names them and the extra that installs them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("batchjob_stats_db", "sqlalchemy", "db"), ("batchjob_stats_server", "uvicorn", "server")],
)
def test_missing_library_names_the_extra_to_install(module, missing, extra):
    argument = f"run_name='__main__', mod_name={module!r}"
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_module({argument})"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    message = (
        f"{missing} is not installed; install it with: pip install 'batchjob-monitoring[{extra}]'"
    )
    assert (completed.returncode, completed.stderr) == (2, f"{module}: {message}\n")
