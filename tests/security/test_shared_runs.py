"""A directory of runs shared by several users (mode 1777): no user can act in the name of another.

Three users of the machine take part: root, who polls; a victim; and an attacker, who can write any
file to the directory. Each acts in a process with its own uid.
"""

import codecs
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import sqlalchemy as sa

from batchjob.local_runs import accounting as source
from batchjob.local_runs import history, retention
from batchjob.local_runs import record as run_files
from batchjob.local_runs.output import Reader, StreamLog
from batchjob.local_runs.record import Run, SupervisorProcess
from batchjob.local_runs.retention import sweep, sweep_daily
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.user_files import open_regular_file
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.states import JobState
from batchjob_cli import stop
from batchjob_cli.run import command as run_command
from batchjob_cli.run import stop_request
from batchjob_cli.run.supervisor import end_abandoned
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

VICTIM, ATTACKER = "daemon", "games"
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def start_as(name: str, action: Callable[[], object]) -> int:
    """Call `action` in a child process as a user, who may not read the files of Python."""
    codecs.lookup("ascii")  # loads the module, which is read at its first use
    user = pwd.getpwnam(name)
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            action()
            status = 0
        finally:
            os._exit(status)
    return pid


def run_as(name: str, action: Callable[[], object]) -> None:
    """The same, and wait for its end."""
    assert os.waitstatus_to_exitcode(os.waitpid(start_as(name, action), 0)[1]) == 0


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory for all users, as in docs/run.md."""
    data = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    data.chmod(0o755)
    for part in ("runs", "logs"):
        (data / part).mkdir()
        (data / part).chmod(0o1777)
    yield data
    subprocess.run(["rm", "-rf", str(data)], check=True)


@pytest.fixture
def victim_process() -> Iterator[subprocess.Popen]:
    """A process of the victim that is not a run."""
    process = subprocess.Popen(["sleep", "600"], user=VICTIM)
    yield process
    process.kill()
    process.wait()


def supervisor_of(pid: int) -> SupervisorProcess:
    ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return SupervisorProcess(pid, ticks, boot)


def run_record(name: str, **changes) -> Run:
    run = Run(
        jobid=ID, node=os.uname().nodename, user=name, uid=pwd.getpwnam(name).pw_uid,
        submit_time=1775300000, start_time=1775300000, state=JobState.RUNNING,
        supervisor=supervisor_of(os.getpid()), name="train",
    )  # fmt: skip
    return run._replace(**changes)


def forge_record(data: Path, run: Run, **fields) -> None:
    """Write a record as the attacker, with any content."""
    document = {"version": 1, **run._asdict(), "supervisor": run.supervisor._asdict(), **fields}

    def write() -> None:
        path = data / "runs" / f"{document['jobid'].rpartition('/')[2]}.json"
        path.write_text(json.dumps(document))
        path.chmod(0o644)

    run_as(ATTACKER, write)


def write_record(path: Path, run: Run) -> None:
    """Write a record as `batchjob run` does, as the current user."""
    document = {"version": 1, **run._asdict(), "supervisor": run.supervisor._asdict()}
    path.write_text(json.dumps(document))
    path.chmod(0o644)


def poll_runs(data: Path, known: dict | None = None):
    """Poll the directory as root; returns the jobs, and the reasons of quarantined records."""
    batches = list(
        source.Runs("c1", source.LocalRunsOptions(path=str(data / "runs"))).read("0", known or {})
    )
    return (
        [job for batch in batches for job in batch.jobs],
        [bad.reason for batch in batches for bad in batch.quarantined],
    )


def test_user_name_comes_from_uid(data):
    forge_record(data, run_record(ATTACKER, user="root"), account="finance", energy_joules=10**9)
    ((job,), bad) = poll_runs(data)
    assert (job.user, job.account, job.energy_joules) == (ATTACKER, "", None)
    assert bad == []
    assert history.job(ID, str(data)).user == ATTACKER


def test_run_in_name_of_another_user_is_quarantined(data):
    forge_record(data, run_record(VICTIM))
    assert poll_runs(data) == ([], [f"{ID}.json: uid 5 wrote a run of uid 1"])
    assert history.history(data=str(data)) == []


def test_world_writable_record_is_quarantined(data):
    path = run_files.write(data / "runs", run_record(VICTIM))
    os.chown(path, pwd.getpwnam(VICTIM).pw_uid, -1)
    path.chmod(0o666)
    (jobs, (reason,)) = poll_runs(data)
    assert (jobs, "only its owner may write to" in reason) == ([], True)


def test_special_files_are_skipped_without_blocking(data):
    secret = data / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)

    def plant() -> None:
        runs = data / "runs"
        os.mkfifo(runs / f"{ID}.json")
        os.mkfifo(runs / f"{ID}.stop")
        os.mkfifo(runs / f"{ID}.deleted")
        (runs / f"{OTHER_ID}.json").symlink_to(secret)
        (runs / f"{OTHER_ID}.deleted").symlink_to(secret)

    run_as(ATTACKER, plant)
    known = {ID: UnfinishedJob(1, 1, 1), OTHER_ID: UnfinishedJob(1, 1, 1)}
    batches = source.Runs("c1", source.LocalRunsOptions(path=str(data / "runs"))).read("0", known)
    *_, last = list(batches)
    assert sorted(bad.reason.partition(": ")[2] for bad in last.quarantined) == [
        "expected a regular file",
        "expected a regular file, found a symbolic link",
    ]
    assert all("of root" not in bad.raw for bad in last.quarantined)
    assert (last.deleted, last.vanished) == ((), ())
    assert stop_request.pop(data / "runs", ID) is None
    assert history.history(data=str(data)) == []
    sweep(data)


def test_huge_file_is_not_read_completely(data):
    def plant() -> None:
        with (data / "runs" / f"{ID}.json").open("wb") as file:
            file.truncate(1 << 40)

    run_as(ATTACKER, plant)
    assert poll_runs(data) == ([], [f"{ID}.json: expected a run of version 1"])


def test_owner_and_text_are_of_the_same_opened_file(data):
    """Owner and text are of one file, even if the path is replaced a moment later."""
    path = run_files.write(data / "runs", run_record("root"))
    with open_regular_file(path) as (file, status):
        new_file = data / "runs" / "new"
        new_file.write_text("{}")
        os.chown(new_file, 5, -1)
        new_file.replace(path)
        assert (status.st_uid, json.loads(file.read())["user"]) == (0, "root")
    assert path.stat().st_uid == 5


@pytest.mark.parametrize("jobid", ["../../../../etc", "x", ID.upper()])
def test_record_with_another_jobid_is_rejected(data, jobid):
    """Otherwise `batchjob delete train` by root would delete files named by the attacker."""
    forge_record(data, run_record(ATTACKER, state=JobState.COMPLETED, end_time=1775300001))
    path = data / "runs" / f"{ID}.json"
    document = json.loads(path.read_text())
    run_as(ATTACKER, lambda: path.write_text(json.dumps(document | {"jobid": jobid})) and None)
    with pytest.raises(SettingsError, match="no run has the id or name 'train'"):
        stop.delete(["train", f"--data={data}"])
    assert poll_runs(data)[0] == []


def test_stop_of_forged_record_ends_no_other_process(data, victim_process):
    forge_record(data, run_record(ATTACKER, supervisor=supervisor_of(victim_process.pid)))
    with pytest.raises(SettingsError, match="is another user's"):
        stop.run(["train", f"--data={data}"])
    time.sleep(0.2)
    assert victim_process.poll() is None
    assert not (data / "runs" / f"{ID}.stop").exists()


def test_reused_pid_is_not_signalled(data):
    process = subprocess.Popen(["sleep", "600"], user=ATTACKER)
    try:
        supervisor = supervisor_of(process.pid)
        run = run_record(
            ATTACKER, supervisor=supervisor._replace(start_ticks=supervisor.start_ticks - 1)
        )
        assert not run_files.signal_supervisor(run, signal.SIGTERM)
        assert process.poll() is None
        run = run_record(ATTACKER, supervisor=supervisor)
        assert run_files.signal_supervisor(run, signal.SIGTERM)
        assert process.wait(scaled(10)) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_only_owner_and_root_can_request_stop(data):
    run_as(ATTACKER, lambda: stop_request.write(data / "runs", ID, 0.0))
    assert stop_request.read(data / "runs", ID) is None  # we are root, and run ID

    def pop_stop_request() -> None:
        assert stop_request.pop(data / "runs", ID) is None  # and it cannot be removed

    run_as(VICTIM, pop_stop_request)
    stop_request.write(data / "runs", ID, 3.0)

    def read_stop_request() -> None:
        assert stop_request.read(data / "runs", ID) == ("root", 3.0)

    run_as(VICTIM, read_stop_request)


@pytest.mark.parametrize("plant", [Path.touch, Path.mkdir], ids=["file", "directory"])
def test_owner_stops_a_run_although_another_user_took_the_name_of_the_request(data, plant):
    """The command ignores SIGTERM, so that only the grace of the request ends it."""
    (data / "started").mkdir()
    (data / "started").chmod(0o777)
    script = f"trap '' TERM; touch {data}/started/it; while :; do sleep 0.05; done"
    argv = [f"--data={data}", "--cgroup=never", "--quiet", "--", "sh", "-c", script]
    pid = start_as(VICTIM, lambda: run_command.run(argv))
    try:
        until(lambda: (data / "started" / "it").exists())
        (record,) = (data / "runs").glob("[!.]*.json")
        run_as(ATTACKER, lambda: plant(record.with_suffix(".stop")))
        run_as(VICTIM, lambda: stop.run([record.stem, f"--data={data}", "--grace=0s"]))
        os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    (run,) = history.all_runs(data)
    assert (run.state, run.cancelled_by) == (JobState.CANCELLED, VICTIM)
    assert not list((data / "runs").glob("*.*.stop"))


def test_owner_deletes_a_run_although_another_user_took_its_names(data):
    run = run_record(VICTIM, state=JobState.COMPLETED, end_time=1775300001)
    path = data / "runs" / f"{ID}.json"
    run_as(VICTIM, lambda: write_record(path, run))

    def plant() -> None:
        (data / "runs" / f"{ID}.deleted").touch()
        (data / "logs" / ID).mkdir()

    run_as(ATTACKER, plant)
    run_as(VICTIM, lambda: stop.delete_run(data, run))
    assert not path.exists()
    *_, last = source.Runs("c1", source.LocalRunsOptions(path=str(data / "runs"))).read("0", {})
    uids = {each.uid for each in last.deleted if each.jobid == ID}
    assert uids == {pwd.getpwnam(name).pw_uid for name in (ATTACKER, VICTIM)}
    assert not list((data / "runs").iterdir())


def test_files_that_ask_for_deletions_are_limited_by_owner(data, monkeypatch):
    monkeypatch.setattr(source, "_MAX_FILES_OF_USER", 3)

    def plant(count: int) -> None:
        for _ in range(count):
            (data / "runs" / f"{uuid.uuid4()}.deleted").touch()

    run_as(ATTACKER, lambda: plant(10))
    run_as(VICTIM, lambda: plant(2))
    runs = source.Runs("c1", source.LocalRunsOptions(path=str(data / "runs")))

    def poll() -> list[int]:
        *_, last = runs.read("0", {})
        return sorted(each.uid for each in last.deleted)

    victim, attacker = (pwd.getpwnam(name).pw_uid for name in (VICTIM, ATTACKER))
    assert poll() == [victim] * 2 + [attacker] * 3
    assert [len(poll()) for _ in range(4)] == [3, 3, 1, 0]


@pytest.mark.parametrize(
    "content", [b"[" * 1000, b"{" * 1000, b'{"grace": 1e999}', b'{"grace": -1}', b"null", b"\xff"]
)
def test_run_ends_whatever_another_user_asks(data, content):
    """The attacker learns the id while the run goes on, and writes beside its record."""
    log = data / "stderr.log"

    def plant() -> None:
        (record,) = (data / "runs").glob("[!.]*.json")
        record.with_suffix(".stop").write_bytes(content)

    script = f"until [ -e {data}/go ]; do sleep 0.05; done; exit 3"
    command = [sys.executable, "-m", "batchjob_cli", "run", f"--data={data}", "--cgroup=never",
               "--", "sh", "-c", script]  # fmt: skip
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
        deadline = time.monotonic() + scaled(20)
        while not list((data / "runs").glob("[!.]*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        run_as(ATTACKER, plant)
        (data / "go").touch()
        assert process.wait(scaled(20)) == 3, log.read_text()
    (run,) = history.all_runs(data)
    assert (run.state, run.exit_code, run.cancelled_by) == (JobState.FAILED, 3, "")


def test_delete_by_root_follows_no_link(data):
    target, existing = data / "made", data / "existing"
    existing.write_text("of root")
    os.utime(existing, (1, 1))
    for name, to in ((ID, target), (OTHER_ID, existing)):
        run = run_record("root", jobid=name, state=JobState.COMPLETED, end_time=1775300001)
        run_files.write(data / "runs", run)
        (data / "runs").chmod(0o777)  # where the kernel's protected_symlinks does not help
        run_as(ATTACKER, lambda name=name, to=to: plant_link(data, name, to))
        stop.delete_run(data, run)
        tombstone = (data / "runs" / f"{name}.deleted").lstat()
        assert (tombstone.st_uid, stat.S_ISREG(tombstone.st_mode)) == (0, True)
    assert not target.exists()
    assert existing.stat().st_mtime == 1


def plant_link(data: Path, name: str, target: Path) -> None:
    (data / "runs" / f"{name}.deleted").symlink_to(target)


def test_large_output_of_one_user_does_not_evict_that_of_others(data):
    own = data / "logs" / ID
    own.mkdir()
    (own / "stdout.000000.gz").write_bytes(b"x" * 10_000)

    def plant() -> None:
        folder = data / "logs" / OTHER_ID
        folder.mkdir()
        (folder / "stdout.000000.gz").write_bytes(b"x" * 3_000_000)
        os.utime(folder / "stdout.000000.gz", (4e9, 4e9))
        (data / "logs" / "link").symlink_to(folder)
        with (folder / "stdout.000001.gz").open("wb") as file:
            file.truncate(3 << 40)

    run_as(ATTACKER, plant)
    sweep(data, logs_bytes=1_000_000)
    assert own.exists()
    assert not (data / "logs" / OTHER_ID).exists()


def test_users_sweep_their_own_output(data):
    def leave_output(jobid: str) -> None:
        (data / "logs" / jobid).mkdir()
        (data / "logs" / jobid / "stdout.000000.gz").touch()

    run_as(ATTACKER, lambda: leave_output(OTHER_ID))

    def leave_and_sweep() -> None:
        leave_output(ID)
        with mock.patch.object(retention, "sweep", partial(sweep, logs=0)):
            sweep_daily(data)

    victim = pwd.getpwnam(VICTIM).pw_uid
    run_as(ATTACKER, (data / "runs" / f".swept-{victim}").touch)
    run_as(VICTIM, leave_and_sweep)
    assert [path.name for path in (data / "logs").iterdir()] == [OTHER_ID]


def test_tombstone_carries_uid_of_its_owner(data):
    def plant() -> None:
        (data / "runs" / f"{ID}.deleted").touch()

    run_as(ATTACKER, plant)
    *_, last = source.Runs("c1", source.LocalRunsOptions(path=str(data / "runs"))).read("0", {})
    assert [(each.jobid, each.uid) for each in last.deleted] == [
        (ID, pwd.getpwnam(ATTACKER).pw_uid)
    ]


def test_output_of_another_user_is_not_read(data):
    (data / "private").mkdir(mode=0o700)
    log = StreamLog(data / "private", "stdout", 1000)
    log.add(b"of root\n", 1.0)
    log.close(2.0)
    (data / "logs").chmod(0o777)  # where the kernel's protected_symlinks does not help
    run_as(ATTACKER, lambda: (data / "logs" / ID).symlink_to(data / "private"))
    reader = Reader(data / "logs" / ID, "stdout", pwd.getpwnam(ATTACKER).pw_uid)
    with pytest.raises(NotADirectoryError):
        list(reader.read())


def test_id_of_deleted_run_cannot_be_taken_over(data):
    """The record is deleted after its retention; the attacker then writes one of the same id."""
    url = parse_url(f"sqlite:///{data}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    store = Store(engine, "c1")
    run = run_record(VICTIM)._replace(state=JobState.COMPLETED, end_time=1775300100)

    def poll():
        options = source.LocalRunsOptions(path=str(data / "runs"))
        for batch in source.Runs("c1", options).read("0", {}):
            store.write(batch, "runs")

    path = data / "runs" / f"{ID}.json"
    run_as(VICTIM, lambda: write_record(path, run))
    poll()
    run_as(VICTIM, path.unlink)
    forge_record(data, run_record(ATTACKER), name="mine")
    poll()
    with engine.connect() as db:
        assert db.execute(sa.text("SELECT username, name FROM job")).all() == [(VICTIM, "train")]
        (reason,) = db.execute(sa.text("SELECT reason FROM quarantine")).scalars()
    engine.dispose()
    assert reason.endswith(f"wrote a run of uid {pwd.getpwnam(VICTIM).pw_uid}")


def test_forged_record_does_not_end_cgroup_of_another_user(data):
    """The next run of root cleans up after abandoned runs, but only cgroups of their own users."""
    lines = [line for line in Path("/proc/self/mountinfo").read_text().splitlines()
             if " - cgroup" in line and "cpuset" not in line]  # fmt: skip
    if not lines:
        pytest.skip("no cgroup file system is mounted")
    cgroup = Path(lines[0].split()[4], "batchjob.slice", f"run-{ID}")
    try:
        cgroup.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    process = subprocess.Popen(["sleep", "600"])
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        forge_record(data, run_record(ATTACKER, supervisor=SupervisorProcess(1, 1, "gone")))
        end_abandoned(data / "runs")
        assert process.poll() is None
        assert cgroup.exists()
    finally:
        process.kill()
        process.wait()
        for path in (cgroup, cgroup.parent):
            for _ in range(50):
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_queue_created_by_another_user_is_not_used(data, kind):
    """The attacker has created the queue of the victim, and occupies its only place."""
    victim, runs = pwd.getpwnam(VICTIM), data / "runs"
    target = runs / "made-by-the-victim"

    def create_queue() -> None:
        queue = runs / (f".queue-{victim.pw_uid}" if kind == "directory" else "elsewhere")
        queue.mkdir()
        queue.chmod(0o777)
        (queue / "place-0").symlink_to(target)
        if kind == "link":
            (runs / f".queue-{victim.pw_uid}").symlink_to(queue)

    run_as(ATTACKER, create_queue)
    config = data / "run.yml"
    config.write_text("max-runs: 1\n")
    log = data / "stderr.log"
    with log.open("w") as stderr:

        def run() -> None:
            sys.stderr = stderr
            argv = [f"--config.file={config}", f"--data={data}", "--cgroup=never", "--", "true"]
            assert run_command.run(argv) == 0
            stderr.flush()

        run_as(VICTIM, run)
    assert f"max-runs: {runs}/.queue-{victim.pw_uid}: created by uid" in log.read_text()
    assert not target.exists()
    ((ended, log_folder),) = [(run, data / "logs" / run.jobid) for run in history.all_runs(data)]
    assert (ended.status, log_folder.stat().st_uid) == ("success", victim.pw_uid)
