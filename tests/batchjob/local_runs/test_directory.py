"""The data directory of a machine: how it is found and created."""

from pathlib import Path

import pytest

from batchjob import track
from batchjob.local_runs.directory import RUNS, NoDataDirectory, create_directory, data_directory
from batchjob_cli.main import main


@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        ("/a", {"BATCHJOB_DATA": "/b"}, "/a"),
        ("", {"BATCHJOB_DATA": "/b", "XDG_STATE_HOME": "/c"}, "/b"),
        ("", {"XDG_STATE_HOME": "/c"}, "/c/batchjob"),
        ("", {"XDG_STATE_HOME": "relative"}, "~/.local/state/batchjob"),
        ("", {}, "~/.local/state/batchjob"),
    ],
)
def test_data_directory_is_first_configured_one(option, environment, expected):
    assert data_directory(option, environment) == Path(expected).expanduser()


def test_created_directory_is_private(tmp_path):
    runs = create_directory(tmp_path / "deep" / "data", RUNS)
    assert [oct(each.stat().st_mode & 0o777) for each in (runs, runs.parent)] == ["0o700"] * 2
    assert create_directory(tmp_path / "deep" / "data", RUNS) == runs


@pytest.fixture
def no_home_directory(monkeypatch):
    """Run as a user without an entry in passwd, as in a container with an arbitrary uid."""

    def raise_unknown_uid(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("HOME", "BATCHJOB_DATA", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", raise_unknown_uid)


@pytest.mark.usefixtures("no_home_directory")
def test_missing_home_directory_is_reported():
    with pytest.raises(NoDataDirectory) as caught:
        data_directory()
    assert caught.value.filename == "~/.local/state/batchjob"
    assert caught.value.strerror == "no such home directory; expected --data or $BATCHJOB_DATA"


def test_home_of_unknown_user_is_reported():
    with pytest.raises(NoDataDirectory) as caught:
        data_directory("~nobody-of-this-name/data")
    assert caught.value.filename == "~nobody-of-this-name/data"


@pytest.mark.usefixtures("no_home_directory")
@pytest.mark.parametrize(
    "command",
    [
        ["jobs"], ["job", "x"], ["job", "x", "--script"], ["up"], ["stats"],
        ["logs", "x"], ["stop", "x"], ["cancel", "x"], ["metrics", "x"], ["delete", "x"],
        ["delete", "--all-ended"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_command_reports_missing_home_directory_in_one_line(command, capsys):
    assert main(command) == 2
    message = "no such home directory; expected --data or $BATCHJOB_DATA"
    assert capsys.readouterr().err == f"batchjob: ~/.local/state/batchjob: {message}\n"


@pytest.mark.usefixtures("no_home_directory")
def test_tracked_work_runs_unrecorded_without_home_directory(caplog):
    with track("resize") as work:
        pass
    assert work.run.status == "success"
    message = "~/.local/state/batchjob: no such home directory; expected --data or $BATCHJOB_DATA"
    assert [each.message for each in caplog.records] == [f"resize is not recorded: {message}"]


def test_home_of_unknown_user_in_an_option(capsys):
    assert main(["manual", "--directory=~nobody-of-this-name/man"]) == 2
    assert (
        "--directory: ~nobody-of-this-name/man: no such home directory" in capsys.readouterr().err
    )
