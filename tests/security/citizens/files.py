"""Citizens who write files where others read or delete."""

import gzip
import json
import os
import random
import time
import uuid
from pathlib import Path

from batchjob.local_runs.output import StreamLog
from batchjob.local_runs.record import VERSION
from batchjob.local_runs.retention import sweep
from batchjob_cli.run import stop_request
from batchjob_stats_server.pages import job as job_page
from tests.security.citizens.citizen import CITIZEN_UID, DEEP, VICTIM_UID, citizen
from tests.security.one_bad_citizen import Site

FILES = "files"


@citizen(FILES)
def request_to_stop_the_run_of_another(site, dice):
    run = str(uuid.uuid4())
    path = site.data / "runs" / f"{run}.stop"
    path.write_text(dice.choice(['{"grace": 0}', '{"grace": 86400}', DEEP[:1000]]))
    path.chmod(0o644)
    os.chown(path, CITIZEN_UID, -1)
    assert stop_request.pop(site.data / "runs", run) is None


@citizen(FILES)
def logs_that_take_all_the_room(site, dice):
    """The victim's log stays, although the citizen's are newer and use up a whole quota."""
    logs = site.data / "logs"
    kept = write_log(site, VICTIM_UID, b"a line\n" * 10)
    for _ in range(2):
        directory = logs / str(uuid.uuid4())
        directory.mkdir()
        big = directory / "stderr.000000.gz"
        big.write_bytes(random.Random(1).randbytes(dice.randrange(300_000, 900_000)))
        for path in (directory, big):
            os.chown(path, CITIZEN_UID, -1)
    sweep(site.data, logs_bytes=200_000)
    assert kept.exists(), "the log of another was deleted"


@citizen(FILES)
def sparse_log_dated_ahead(site, dice):
    kept = write_log(site, VICTIM_UID, b"a line\n")
    directory = write_log(site, CITIZEN_UID, b"")
    path = directory / "stdout.000009.gz"
    with path.open("wb") as file:
        file.truncate(dice.randrange(1 << 31, 1 << 40))
    os.utime(path, (9e9, 9e9))
    os.chown(path, CITIZEN_UID, -1)
    sweep(site.data, logs_bytes=100_000)
    assert kept.exists()


def write_log(site: Site, owner: int, text: bytes) -> Path:
    directory = site.data / "logs" / str(uuid.uuid4())
    directory.mkdir()
    log = StreamLog(directory, "stderr", 1 << 20)
    log.add(text, float(site.now))
    log.close(float(site.now))
    for path in (directory, *directory.iterdir()):
        os.chown(path, owner, -1)
    return directory


@citizen(FILES)
def link_to_what_only_root_reads(site, dice):
    secret = site.directory / "secret-of-root"
    secret.write_text(json.dumps({"version": VERSION, "jobid": "x", "uid": 0, "submit_time": 1}))
    secret.chmod(0o600)
    run = str(uuid.uuid4())
    for name in (f"{run}.json", f"{run}.stop", f"{run}.deleted"):
        (site.data / "runs" / name).symlink_to(secret)
        os.chown(site.data / "runs" / name, CITIZEN_UID, -1, follow_symlinks=False)
    site.poll()
    assert stop_request.pop(site.data / "runs", run) is None
    assert secret.exists()


@citizen(FILES)
def pipes_and_huge_files_among_the_records(site, dice):
    runs = site.data / "runs"
    for _ in range(3):
        os.mkfifo(runs / f"{uuid.uuid4()}.json")
    huge = runs / f"{uuid.uuid4()}.json"
    with huge.open("wb") as file:
        file.truncate(1 << dice.randrange(32, 42))


@citizen(FILES)
def log_that_unpacks_for_minutes(site, dice):
    """The page of the failed run of the citizen is shown, and costs little."""
    run = str(uuid.uuid4())
    directory = site.data / "logs" / run
    directory.mkdir()
    line = dice.choice([b"\n", b"x", b"2026-04-04T12:53:20Z stderr F \n", b"\0"])
    path = directory / "stderr.000000.gz"
    path.write_bytes(gzip.compress(line * (30_000_000 // len(line)), 1))
    os.chown(path, CITIZEN_UID, -1)
    started = time.thread_time()
    job_page.last_lines(site.data, run, CITIZEN_UID)
    assert time.thread_time() - started < 5
