"""Where the data of one machine lies."""

from pathlib import Path

import pytest

from batchjob import track
from batchjob.local_runs.directory import RUNS, NoDataDirectory, create_directory, data_directory
from batchjob_cli.main import main


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
    runs = create_directory(tmp_path / "deep" / "data", RUNS)
    assert [oct(each.stat().st_mode & 0o777) for each in (runs, runs.parent)] == ["0o700"] * 2
    assert create_directory(tmp_path / "deep" / "data", RUNS) == runs


@pytest.fixture
def homeless(monkeypatch):
    """A user without an entry in passwd, as in a container that runs with any uid."""

    def nobody(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("HOME", "BATCHJOB_DATA", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_it_says_what_it_expects():
    with pytest.raises(NoDataDirectory) as caught:
        data_directory()
    assert caught.value.filename == "~/.local/state/batchjob"
    assert caught.value.strerror == "no such home directory; expected --data or $BATCHJOB_DATA"


def test_the_home_of_nobody():
    with pytest.raises(NoDataDirectory) as caught:
        data_directory("~nobody-of-this-name/data")
    assert caught.value.filename == "~nobody-of-this-name/data"


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(
    "command",
    [
        ["jobs"], ["job", "x"], ["job", "x", "--script"], ["run", "true"], ["up"], ["stats"],
        ["logs", "x"], ["stop", "x"], ["cancel", "x"], ["metrics", "x"], ["delete", "x"],
        ["delete", "--all-ended"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_each_command_says_so_in_one_line(command, capsys):
    assert main(command) == 2
    told = "no such home directory; expected --data or $BATCHJOB_DATA"
    assert capsys.readouterr().err == f"batchjob: ~/.local/state/batchjob: {told}\n"


@pytest.mark.usefixtures("homeless")
def test_tracked_work_goes_on_without_a_record(caplog):
    with track("resize") as work:
        pass
    assert work.run.status == "success"
    told = "~/.local/state/batchjob: no such home directory; expected --data or $BATCHJOB_DATA"
    assert [each.message for each in caplog.records] == [f"resize is not recorded: {told}"]


def test_a_home_in_the_settings_of_runs_and_of_manuals(tmp_path, capsys):
    config = tmp_path / "run.yml"
    config.write_text("log: {file: ~nobody-of-this-name/runs.log}\n")
    assert main(["run", f"--config.file={config}", "true"]) == 2
    assert main(["manual", "--directory=~nobody-of-this-name/man"]) == 2
    log, manual = capsys.readouterr().err.splitlines()
    assert log == "batchjob: log.file: ~nobody-of-this-name/runs.log: no such home directory"
    assert "--directory: ~nobody-of-this-name/man: no such home directory" in manual
