"""A command whose libraries are not installed says which, and what brings them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("batchjob_stats_db", "sqlalchemy", "db"), ("batchjob_stats_server", "uvicorn", "server")],
)
def test_a_command_without_its_libraries(module, missing, extra):
    argument = f"run_name='__main__', mod_name={module!r}"
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_module({argument})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = (
        f"{missing} is not installed; install it with: pip install 'batchjob-monitoring[{extra}]'"
    )
    assert (done.returncode, done.stderr) == (2, f"{module}: {told}\n")
