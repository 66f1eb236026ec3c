"""An SQLite file that is damaged: that is found and said, and a backup brings all back."""

import json
import random
import sqlite3
from contextlib import closing

import pytest

from batchjob_stats_db.main import main
from tests.batchjob_stats_db.conftest import NOW

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

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

    def ends(self, begin, end):
        with self.lines.open("a") as file:
            for number in range(begin, end):
                at = NOW - 90 * number
                file.write(
                    f'{{"jobid": "{number}", "submit_time": {at - 700}, "start_time": {at - 600},'
                    f' "end_time": {at}, "state": "COMPLETED", "user": "user{number % 9}"}}\n'
                )

    def run(self, *arguments):
        """Status and complaints, which are lines and no traceback."""
        status = main(["--config.file", str(self._config), *map(str, arguments)])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out + said.err

    def jobids(self):
        with closing(sqlite3.connect(self.path)) as db:
            return sorted(int(jobid) for (jobid,) in db.execute("SELECT jobid FROM job"))


@pytest.fixture
def site(tmp_path, capsys):
    """With a backup of the first half of the jobs, and all of them in the file."""
    made = Site(tmp_path, capsys)
    assert made.run("migrate")[0] == 0
    made.ends(0, JOBS // 2)
    assert made.run("--once")[0] == 0
    assert made.run("backup", tmp_path / "copy.db")[0] == 0
    made.ends(JOBS // 2, JOBS)
    assert made.run("--once")[0] == 0
    assert made.jobids() == list(range(JOBS))
    return made


def overwrite(path, content, at, garbage):
    path.write_bytes(content[:at] + garbage + content[at + len(garbage) :])
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def test_a_page_of_garbage_is_found_wherever_it_is(site, long_form):
    with closing(sqlite3.connect(site.path)) as db:
        assert db.execute("PRAGMA freelist_count").fetchone() == (0,)
    content = site.path.read_bytes()
    chance = random.Random(5)
    pages = range(len(content) // PAGE)
    for page in pages if long_form else sorted({0, *chance.sample(pages, 12)}):
        overwrite(site.path, content, page * PAGE, chance.randbytes(PAGE))
        status, said = site.run("check")
        assert status != 0, page
        assert said.strip()
        for command in (["--once"], ["backup", site.path.with_name("bad.db")], ["export"]):
            site.run(*command)


def test_single_bits_crash_nothing(site, long_form):
    content = site.path.read_bytes()
    chance = random.Random(7)
    for _ in range(500 if long_form else 15):
        at = chance.randrange(len(content))
        overwrite(site.path, content, at, bytes([content[at] ^ 1 << chance.randrange(8)]))
        for command in (["check"], ["--once"], ["export"]):
            site.run(*command)


def test_bytes_in_a_column_of_texts_are_told(site):
    with closing(sqlite3.connect(site.path)) as db, db:
        db.execute("UPDATE job SET name = x'00ff' WHERE jobid = '7'")
    status, said = site.run("export")
    assert (status, said.splitlines()[-1].partition(";")[0]) == (
        2, "batchjob_stats_db: the database is damaged: expected text or a number, found bytes",
    )  # fmt: skip


def test_a_text_in_a_column_of_numbers_is_told(site):
    with closing(sqlite3.connect(site.path)) as db, db:
        db.execute("UPDATE job SET allocated_cpus = 'many' WHERE jobid = '7'")
    status, said = site.run("check")
    assert (status, "damaged: job.allocated_cpus: 1 values of the wrong type" in said) == (1, True)
    status, said = site.run("export")
    assert (status, "malformed: 'many' where a number must be" in said) == (1, True)
    site.run("--once")


def test_a_damaged_name_of_a_table_is_told(site):
    content = site.path.read_bytes().replace(b"tablejobjob", b"tablejo\xf2job")
    overwrite(site.path, content, content.index(b"CREATE TABLE job "), b"?")
    for command in ("check", "--once", "export"):
        status, said = site.run(command)
        assert status != 0
        assert str(site.path) in said
        assert "restore" in said


def test_a_restored_backup_is_filled_up_again(site):
    content = site.path.read_bytes()
    overwrite(site.path, content, 0, b"no database at all" * 1000)
    assert site.run("--once")[0] != 0
    assert site.run("restore", site.path.with_name("copy.db"))[0] == 0
    assert site.jobids() == list(range(JOBS // 2))
    assert site.run("--once")[0] == 0
    assert site.jobids() == list(range(JOBS))
    assert "damaged" not in site.run("check")[1]
