"""Damaged SQLite files are detected and reported, and a backup restores everything."""

import json
import random
import sqlite3
from contextlib import closing

import pytest

from batchjob_stats_db.main import main
from tests.batchjob_stats_db.conftest import NOW

pytestmark = pytest.mark.usefixtures("restore_logging")

JOBS = 400
PAGE = 8192


class Site:
    """A database of jobs that a scheduler writes as JSON lines, and the command."""

    def __init__(self, folder, capsys):
        self.path, self.lines = folder / "jobs.db", folder / "jobs.jsonl"
        self._config, self._capsys = folder / "batchjob.yml", capsys
        sources = {"jsonl": {"path": str(self.lines)}}
        self._config.write_text(
            json.dumps({
                "db": {"url": f"sqlite:///{self.path}"},
                "clusters": [{"name": "c1", "sources": sources}],
            })
        )  # fmt: skip

    def append_ended_jobs(self, begin, end):
        with self.lines.open("a") as file:
            for number in range(begin, end):
                at = NOW - 90 * number
                file.write(
                    f'{{"jobid": "{number}", "submit_time": {at - 700}, "start_time": {at - 600},'
                    f' "end_time": {at}, "state": "COMPLETED", "user": "user{number % 9}"}}\n'
                )

    def run(self, *arguments):
        """Run the command; status and output, which must not contain a traceback."""
        status = main(["--config.file", str(self._config), *map(str, arguments)])
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out + captured.err

    def jobids(self):
        with closing(sqlite3.connect(self.path)) as db:
            return sorted(int(jobid) for (jobid,) in db.execute("SELECT jobid FROM job"))


@pytest.fixture
def site(tmp_path, capsys):
    """A database of all jobs, with a backup of the first half of them."""
    site = Site(tmp_path, capsys)
    assert site.run("migrate")[0] == 0
    site.append_ended_jobs(0, JOBS // 2)
    assert site.run("--once")[0] == 0
    assert site.run("backup", tmp_path / "copy.db")[0] == 0
    site.append_ended_jobs(JOBS // 2, JOBS)
    assert site.run("--once")[0] == 0
    assert site.jobids() == list(range(JOBS))
    return site


def overwrite(path, content, at, garbage):
    path.write_bytes(content[:at] + garbage + content[at + len(garbage) :])
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def test_check_finds_an_overwritten_page(site, long_form):
    with closing(sqlite3.connect(site.path)) as db:
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
    content = site.path.read_bytes()
    rng = random.Random(5)
    pages = range(len(content) // PAGE)
    for page in pages if long_form else sorted({0, *rng.sample(pages, 12)}):
        overwrite(site.path, content, page * PAGE, rng.randbytes(PAGE))
        status, output = site.run("check")
        assert status != 0, page
        assert output.strip()
        for command in (["--once"], ["backup", site.path.with_name("bad.db")], ["export"]):
            site.run(*command)


def test_flipped_bits_cause_no_traceback(site, long_form):
    content = site.path.read_bytes()
    rng = random.Random(7)
    for _ in range(500 if long_form else 15):
        at = rng.randrange(len(content))
        overwrite(site.path, content, at, bytes([content[at] ^ 1 << rng.randrange(8)]))
        for command in (["check"], ["--once"], ["export"]):
            site.run(*command)


def test_bytes_in_a_text_column_are_reported(site):
    with closing(sqlite3.connect(site.path)) as db, db:
        db.execute("UPDATE job SET name = x'00ff' WHERE jobid = '7'")
    status, output = site.run("export")
    assert (status, output.splitlines()[-1].partition(";")[0]) == (
        2, "batchjob_stats_db: the database is damaged: expected text or a number, found bytes",
    )  # fmt: skip


def test_text_in_a_number_column_is_reported(site):
    with closing(sqlite3.connect(site.path)) as db, db:
        db.execute("UPDATE job SET allocated_cpus = 'many' WHERE jobid = '7'")
    status, output = site.run("check")
    assert (status, "damaged: job.allocated_cpus: 1 values of the wrong type" in output) == (
        1,
        True,
    )
    status, output = site.run("export")
    assert (status, "malformed: 'many' where a number must be" in output) == (1, True)
    site.run("--once")


def test_damaged_table_name_is_reported(site):
    content = site.path.read_bytes().replace(b"tablejobjob", b"tablejo\xf2job")
    overwrite(site.path, content, content.index(b"CREATE TABLE job "), b"?")
    for command in ("check", "--once", "export"):
        status, output = site.run(command)
        assert status != 0
        assert str(site.path) in output
        assert "restore" in output


def test_restored_backup_is_filled_up_by_the_next_poll(site):
    content = site.path.read_bytes()
    overwrite(site.path, content, 0, b"no database at all" * 1000)
    assert site.run("--once")[0] != 0
    site.path.with_name("copy.db").replace(site.path)
    for name in ("-wal", "-shm"):
        site.path.with_name(site.path.name + name).unlink(missing_ok=True)
    assert site.jobids() == list(range(JOBS // 2))
    assert site.run("--once")[0] == 0
    assert site.jobids() == list(range(JOBS))
    assert "damaged" not in site.run("check")[1]
