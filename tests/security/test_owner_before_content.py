"""A file of another user is not even parsed, where it is known whose file it should be."""

import os
import pwd
from functools import partial

import pytest

from batchjob.local_runs import accounting as source
from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import LOGS, RUNS
from batchjob.local_runs.record import SupervisorProcess, new_run
from batchjob.local_runs.retention import sweep
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.states import JobState

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of several users")

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
VICTIM, ATTACKER = (pwd.getpwnam(name).pw_uid for name in ("daemon", "games"))


@pytest.fixture
def data(tmp_path):
    """A data directory in which the attacker says that the victim's run goes on elsewhere."""
    for name in (RUNS, LOGS):
        (tmp_path / name).mkdir(mode=0o1777)
    run = new_run(ID, JobState.RUNNING, SupervisorProcess(1, 1, "x"))
    run = run._replace(node="elsewhere", uid=ATTACKER)
    path = run_files.write(tmp_path / RUNS, run)
    os.utime(path, (1000, 1000))
    os.chown(path, ATTACKER, -1)
    return tmp_path


@pytest.fixture
def parsed(monkeypatch):
    """The texts that are parsed."""
    texts = []
    parse = run_files.parse_json
    monkeypatch.setattr(run_files, "parse_json", lambda text: texts.append(text) or parse(text))
    return texts


@pytest.mark.parametrize(("uid", "reads", "vanished"), [(VICTIM, 0, (ID,)), (ATTACKER, 2, ())])
def test_run_whose_file_another_user_replaced_has_vanished(data, parsed, uid, reads, vanished):
    runs = source.Runs("c1", source.LocalRunsOptions(path=str(data / RUNS)))
    unfinished = {ID: UnfinishedJob(1, 1, 1.0, "RUNNING", uid=uid)}
    (*_, last) = runs.read("2000", unfinished)
    assert last.vanished == vanished
    assert len(parsed) == reads


@pytest.mark.parametrize(("owner", "kept"), [(VICTIM, False), (ATTACKER, True)])
def test_output_is_kept_for_no_run_of_another_user(data, parsed, owner, kept):
    directory = data / LOGS / ID
    directory.mkdir()
    (directory / "stdout.000000.gz").write_bytes(b"x" * 9000)
    for path in (directory, *directory.iterdir()):
        os.chown(path, owner, -1)
    sweep(data, logs_bytes=10)
    assert directory.exists() == kept
    assert bool(parsed) == kept


def test_file_of_others_is_refused_before_it_is_read(data, parsed):
    read = partial(run_files.read, data / RUNS / f"{ID}.json")
    with pytest.raises(PermissionError, match=f"uid {ATTACKER} wrote it"):
        read((0, VICTIM))
    assert parsed == []
    assert read((0, ATTACKER))["uid"] == ATTACKER
