"""A directory of runs that several users share (mode 1777): nobody speaks or decides for others.

Three users of the machine take part: root, who polls; a victim; and an attacker, who can write any
file to the directory. Each acts in a process of his own with his own uid.
"""

import codecs
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.local_runs import accounting as source
from batchjob.local_runs import history
from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import open_regular_file
from batchjob.local_runs.output import Reader, StreamLog
from batchjob.local_runs.record import Run, SupervisorProcess
from batchjob.local_runs.retention import RunRetention, sweep
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.states import JobState
from batchjob_cli import delete, stop
from batchjob_cli.run import command as run_command
from batchjob_cli.run import stop_request
from batchjob_cli.run.abandoned import end_abandoned
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

VICTIM, ATTACKER = "daemon", "games"
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def as_user(name: str, action: Callable[[], None]) -> None:
    """Do something with the uid and gid of a user, in a child, who may not read Python's files."""
    codecs.lookup("ascii")  # whose module is read at its first use
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
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def shared() -> Iterator[Path]:
    """A data directory for everybody, as docs/run.md says."""
    data = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    data.chmod(0o755)
    for part in ("runs", "logs"):
        (data / part).mkdir()
        (data / part).chmod(0o1777)
    yield data
    subprocess.run(["rm", "-rf", str(data)], check=True)


@pytest.fixture
def victim_process() -> Iterator[subprocess.Popen]:
    """A process of the victim's that has nothing to do with runs."""
    process = subprocess.Popen(["sleep", "600"], user=VICTIM)
    yield process
    process.kill()
    process.wait()


def supervisor_of(pid: int) -> SupervisorProcess:
    ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return SupervisorProcess(pid, ticks, boot)


def run_of(name: str, **changes) -> Run:
    run = Run(
        jobid=ID, node=os.uname().nodename, user=name, uid=pwd.getpwnam(name).pw_uid,
        submit_time=1775300000, start_time=1775300000, state=JobState.RUNNING,
        supervisor=supervisor_of(os.getpid()), name="train",
    )  # fmt: skip
    return run._replace(**changes)


def forge(data: Path, run: Run, **more) -> None:
    """The attacker writes a record, with anything in it."""
    document = {"version": 1, **run._asdict(), "supervisor": run.supervisor._asdict(), **more}

    def write() -> None:
        path = data / "runs" / f"{document['jobid'].rpartition('/')[2]}.json"
        path.write_text(json.dumps(document))
        path.chmod(0o644)

    as_user(ATTACKER, write)


def write_record(path: Path, run: Run) -> None:
    """A user's own record, as `batchjob run` leaves it."""
    document = {"version": 1, **run._asdict(), "supervisor": run.supervisor._asdict()}
    path.write_text(json.dumps(document))
    path.chmod(0o644)


def polled(data: Path, known: dict | None = None):
    """What root's poller makes of the directory: jobs, and reasons of what it set aside."""
    batches = list(
        source.build("c1", source.LocalRunsOptions(path=str(data / "runs"))).read("0", known or {})
    )
    return (
        [job for batch in batches for job in batch.jobs],
        [bad.reason for batch in batches for bad in batch.quarantined],
    )


def test_a_name_comes_from_the_uid(shared):
    forge(shared, run_of(ATTACKER, user="root"), account="finance", energy_joules=10**9)
    ((job,), bad) = polled(shared)
    assert (job.user, job.account, job.energy_joules) == (ATTACKER, "", None)
    assert bad == []
    assert history.job(ID, str(shared)).user == ATTACKER


def test_nobody_writes_a_run_of_another(shared):
    forge(shared, run_of(VICTIM))
    assert polled(shared) == ([], [f"{ID}.json: uid 5 wrote a run of uid 1"])
    assert history.history(data=str(shared)) == []


def test_a_record_that_anybody_may_write_to_says_nothing(shared):
    path = run_files.write(shared / "runs", run_of(VICTIM))
    os.chown(path, pwd.getpwnam(VICTIM).pw_uid, -1)
    path.chmod(0o666)
    (jobs, (reason,)) = polled(shared)
    assert (jobs, "only its owner may write to" in reason) == ([], True)


def test_what_is_no_plain_file_holds_nobody_up(shared):
    secret = shared / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)

    def plant() -> None:
        runs = shared / "runs"
        os.mkfifo(runs / f"{ID}.json")
        os.mkfifo(runs / f"{ID}.stop")
        os.mkfifo(runs / f"{ID}.deleted")
        (runs / f"{OTHER_ID}.json").symlink_to(secret)
        (runs / f"{OTHER_ID}.deleted").symlink_to(secret)

    as_user(ATTACKER, plant)
    known = {ID: UnfinishedJob(1, 1, 1), OTHER_ID: UnfinishedJob(1, 1, 1)}
    found = source.build("c1", source.LocalRunsOptions(path=str(shared / "runs"))).read("0", known)
    *_, last = list(found)
    assert sorted(bad.reason.partition(": ")[2] for bad in last.quarantined) == [
        "expected a regular file",
        "expected a regular file, found a symbolic link",
    ]
    assert all("of root" not in bad.raw for bad in last.quarantined)
    assert (last.deleted, last.vanished) == ((), ())
    assert stop_request.pop(shared / "runs", ID) is None
    assert history.history(data=str(shared)) == []
    sweep(shared, RunRetention())


def test_a_huge_file_is_not_read_as_a_whole(shared):
    def plant() -> None:
        with (shared / "runs" / f"{ID}.json").open("wb") as file:
            file.truncate(1 << 40)

    as_user(ATTACKER, plant)
    assert polled(shared) == ([], [f"{ID}.json: expected a run of version 1"])


def test_a_file_that_changes_is_judged_by_what_was_opened(shared):
    """Owner and text are of one file, though another stands at the path a moment later."""
    path = run_files.write(shared / "runs", run_of("root"))
    with open_regular_file(path) as (file, status):
        as_user_file = shared / "runs" / "new"
        as_user_file.write_text("{}")
        os.chown(as_user_file, 5, -1)
        as_user_file.replace(path)
        assert (status.st_uid, json.loads(file.read())["user"]) == (0, "root")
    assert path.stat().st_uid == 5


@pytest.mark.parametrize("jobid", ["../../../../etc", "x", ID.upper()])
def test_a_record_names_itself_alone(shared, jobid):
    """Else `batchjob delete train` by root would remove what the attacker names."""
    forge(shared, run_of(ATTACKER, state=JobState.COMPLETED, end_time=1775300001))
    path = shared / "runs" / f"{ID}.json"
    document = json.loads(path.read_text())
    as_user(ATTACKER, lambda: path.write_text(json.dumps(document | {"jobid": jobid})) and None)
    with pytest.raises(SettingsError, match="no run has the id or name 'train'"):
        delete.run(["train", f"--data={shared}"])
    assert polled(shared)[0] == []


def test_stopping_a_forged_record_ends_nobody_else(shared, victim_process):
    forge(shared, run_of(ATTACKER, supervisor=supervisor_of(victim_process.pid)))
    with pytest.raises(SettingsError, match="is another user's"):
        stop.run(["train", f"--data={shared}"])
    time.sleep(0.2)
    assert victim_process.poll() is None
    assert not (shared / "runs" / f"{ID}.stop").exists()


def test_a_pid_that_is_used_again_is_not_ended(shared):
    process = subprocess.Popen(["sleep", "600"], user=ATTACKER)
    try:
        here = supervisor_of(process.pid)
        run = run_of(ATTACKER, supervisor=here._replace(start_ticks=here.start_ticks - 1))
        assert not run_files.signal_supervisor(run, signal.SIGTERM)
        assert process.poll() is None
        run = run_of(ATTACKER, supervisor=here)
        assert run_files.signal_supervisor(run, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_only_the_user_and_root_ask_for_an_end(shared):
    as_user(ATTACKER, lambda: stop_request.write(shared / "runs", ID, 0.0))
    assert stop_request.read(shared / "runs", ID) is None  # we are root, and run ID

    def victims_view() -> None:
        assert stop_request.pop(shared / "runs", ID) is None  # and it cannot be removed

    as_user(VICTIM, victims_view)
    stop_request.write(shared / "runs", ID, 3.0)

    def heard() -> None:
        assert stop_request.read(shared / "runs", ID) == ("root", 3.0)

    as_user(VICTIM, heard)


def test_tombstones_are_their_owner_s_word(shared):
    def plant() -> None:
        (shared / "runs" / f"{ID}.deleted").touch()

    as_user(ATTACKER, plant)
    *_, last = source.build("c1", source.LocalRunsOptions(path=str(shared / "runs"))).read("0", {})
    assert [(each.jobid, each.uid) for each in last.deleted] == [
        (ID, pwd.getpwnam(ATTACKER).pw_uid)
    ]


def test_output_of_others_is_not_shown_as_one_s_own(shared):
    (shared / "private").mkdir(mode=0o700)
    log = StreamLog(shared / "private", "stdout", 1000)
    log.add(b"of root\n", 1.0)
    log.close(2.0)
    (shared / "logs").chmod(0o777)  # where the kernel's protected_symlinks does not help
    as_user(ATTACKER, lambda: (shared / "logs" / ID).symlink_to(shared / "private"))
    reader = Reader(shared / "logs" / ID, "stdout", pwd.getpwnam(ATTACKER).pw_uid)
    with pytest.raises(OSError, match="uid 0 wrote it"):
        list(reader.read())


def test_the_id_of_a_run_whose_file_has_gone_is_not_taken_over(shared):
    """Its record ends with its retention; the attacker writes one of his own under its name."""
    url = parse_url(f"sqlite:///{shared}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    store = Store(engine, "c1")
    run = run_of(VICTIM)._replace(state=JobState.COMPLETED, end_time=1775300100)

    def poll():
        options = source.LocalRunsOptions(path=str(shared / "runs"))
        for found in source.build("c1", options).read("0", {}):
            store.write(found, "runs")

    path = shared / "runs" / f"{ID}.json"
    as_user(VICTIM, lambda: write_record(path, run))
    poll()
    as_user(VICTIM, path.unlink)
    forge(shared, run_of(ATTACKER), name="mine")
    poll()
    with engine.connect() as db:
        assert db.execute(sa.text("SELECT username, name FROM job")).all() == [(VICTIM, "train")]
        (reason,) = db.execute(sa.text("SELECT reason FROM quarantine")).scalars()
    engine.dispose()
    assert reason.endswith(f"wrote a run of uid {pwd.getpwnam(VICTIM).pw_uid}")


def test_a_cgroup_of_another_is_not_ended_by_a_forged_record(shared):
    """root's next run clears away what abandoned runs have left: of their own users."""
    lines = [line for line in Path("/proc/self/mountinfo").read_text().splitlines()
             if " - cgroup" in line and "cpuset" not in line]  # fmt: skip
    if not lines:
        pytest.skip("no cgroup file system is mounted")
    own = Path(lines[0].split()[4], "batchjob.slice", f"run-{ID}")
    try:
        own.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    process = subprocess.Popen(["sleep", "600"])
    try:
        (own / "cgroup.procs").write_text(str(process.pid))
        forge(shared, run_of(ATTACKER, supervisor=SupervisorProcess(1, 1, "gone")))
        end_abandoned(shared / "runs")
        assert process.poll() is None
        assert own.exists()
    finally:
        process.kill()
        process.wait()
        for path in (own, own.parent):
            for _ in range(50):
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_the_queue_of_another_is_no_place_to_wait_in(shared, kind):
    """The attacker has made the victim's queue, and will not leave its only place."""
    victim, runs = pwd.getpwnam(VICTIM), shared / "runs"
    precious = runs / "made-by-the-victim"

    def take() -> None:
        made = runs / (f".queue-{victim.pw_uid}" if kind == "directory" else "elsewhere")
        made.mkdir()
        made.chmod(0o777)
        (made / "place-0").symlink_to(precious)
        if kind == "link":
            (runs / f".queue-{victim.pw_uid}").symlink_to(made)

    as_user(ATTACKER, take)
    config = shared / "run.yml"
    config.write_text("max-runs: 1\n")
    said = shared / "said"
    with said.open("w") as stderr:

        def run() -> None:
            sys.stderr = stderr
            argv = [f"--config.file={config}", f"--data={shared}", "--cgroup=never", "--", "true"]
            assert run_command.run(argv) == 0
            stderr.flush()

        as_user(VICTIM, run)
    assert f"max-runs: {runs}/.queue-{victim.pw_uid}: created by uid" in said.read_text()
    assert not precious.exists()
    ((ended, kept),) = [(run, shared / "logs" / run.jobid) for run in history.all_runs(shared)]
    assert (ended.status, kept.stat().st_uid) == ("success", victim.pw_uid)
