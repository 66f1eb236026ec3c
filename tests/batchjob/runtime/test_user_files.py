"""Files in shared directories are opened by one module, which looks at what they are first."""

import ast
import os
from pathlib import Path

import pytest

from batchjob.runtime import user_files

ROOT = Path(__file__).parents[3]
PROGRAMS = (
    *(ROOT / "batchjob/local_runs").glob("*.py"),
    *(ROOT / "batchjob_cli/run").glob("*.py"),
    *(ROOT / name for name in ("batchjob_cli/stop.py", "batchjob_cli/logs.py")),
    ROOT / "batchjob_stats_server/pages/job.py",
)
OF_THE_KERNEL = {
    "batchjob/local_runs/record.py": {"read_text", "read_bytes", "mkstemp"},  # /proc; new names
    "batchjob_cli/run/stop_request.py": {"mkstemp"},
    "batchjob_cli/run/cgroup.py": {"open", "read_text", "write_text", "read_bytes"},
    "batchjob_cli/run/process_tree.py": {"open", "read_text", "read_bytes"},
    "batchjob_cli/run/limits.py": {"read_text", "open"},
    "batchjob_cli/run/command.py": {"open"},  # /dev/null
    "batchjob_cli/run/streams.py": {"open", "openpty"},
    "batchjob_cli/run/supervisor.py": {"open", "read_text"},
    "batchjob_cli/run/launch.py": {"open"},
    "batchjob_cli/run/gpus.py": {"open"},
}
OPENING = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkstemp"}


def calls_that_open(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            if name in OPENING:
                yield name, node.lineno


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_files_of_users_are_opened_by_one_module(path):
    if path.name == "user_files.py":
        return
    allowed = OF_THE_KERNEL.get(str(path.relative_to(ROOT)), set())
    found = [(name, line) for name, line in calls_that_open(path) if name not in allowed]
    assert found == [], "use batchjob.runtime.user_files"


def test_file_of_another_owner_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with user_files.open_regular_file(path, (os.geteuid(),)) as (file, _):
        assert file.read() == b"x"
    with (
        pytest.raises(OSError, match="wrote it"),
        user_files.open_regular_file(path, (os.geteuid() + 1,)),
    ):
        pass


def test_directory_behind_a_link_has_no_entries(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert [path.name for path, _ in user_files.list_directory(tmp_path / "folder")] == ["file"]
    with pytest.raises(NotADirectoryError):
        user_files.list_directory(tmp_path / "link")


def test_new_file_takes_no_existing_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        user_files.create_file(tmp_path / "link")
    user_files.touch_own(tmp_path / "link")
    assert user_files.is_own_file(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
