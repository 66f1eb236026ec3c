"""Where the data of one machine lies."""

from pathlib import Path

import pytest

from batchjob.local_runs.directory import RUNS, data_directory, prepare


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("/a", {"BATCHJOB_DATA": "/b"}, "/a"),
        ("", {"BATCHJOB_DATA": "/b", "XDG_STATE_HOME": "/c"}, "/b"),
        ("", {"XDG_STATE_HOME": "/c"}, "/c/batchjob"),
        ("", {"XDG_STATE_HOME": "relative"}, "~/.local/state/batchjob"),
        ("", {}, "~/.local/state/batchjob"),
    ],
)
def test_the_first_that_was_said_is_taken(given, environment, expected):
    assert data_directory(given, environment) == Path(expected).expanduser()


def test_it_is_its_owners_alone(tmp_path):
    runs = prepare(tmp_path / "deep" / "data", RUNS)
    assert [oct(each.stat().st_mode & 0o777) for each in (runs, runs.parent)] == ["0o700"] * 2
    assert prepare(tmp_path / "deep" / "data", RUNS) == runs
