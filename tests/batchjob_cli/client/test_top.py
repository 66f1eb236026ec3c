"""`batchjob top` on a terminal of textual's own."""

import asyncio
import os
import time
import uuid

import pytest
from textual.widgets import DataTable, Static

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.states import JobState
from batchjob_cli import top
from batchjob_cli.main import main
from tests.helpers.waiting import scaled

NOW = time.time()


def local_run(name, state, **more):
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=1000,
        submit_time=NOW - 90, start_time=None if state == JobState.PENDING else NOW - 90,
        state=state, name=name, supervisor=record.current_process(), **more,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path):
    (tmp_path / "runs").mkdir()
    for each in (
        local_run("busy", JobState.RUNNING),
        local_run("later", JobState.PENDING),
        local_run("done", JobState.COMPLETED, end_time=NOW - 10, exit_code=0)._replace(
            start_time=NOW - 200
        ),
    ):
        record.write(tmp_path / "runs", each)
    return str(tmp_path)


def top_arguments(data):
    return top.parse_arguments([f"--data={data}", "--interval=200ms"])


def shown_names(app):
    table = app.query_one(DataTable)
    return [str(table.get_cell_at((row, 1))) for row in range(table.row_count)]


async def wait_for_names(app, pilot, expected):
    for _ in range(int(scaled(400))):  # 20 s on an idle machine
        await pilot.pause(0.05)
        if shown_names(app) == expected:
            return
    raise AssertionError(f"{shown_names(app)}, not {expected}; {app.sub_title}")


def test_running_pending_and_new_jobs_are_shown(data, tmp_path):
    async def look():
        app = top.JobsTop(top_arguments(data))
        async with app.run_test(size=(100, 24)) as pilot:
            await wait_for_names(app, pilot, ["busy", "later"])
            assert "1 running of 2 shown" in app.sub_title
            record.write(
                tmp_path / "runs", local_run("newer", JobState.RUNNING)._replace(start_time=NOW)
            )
            await wait_for_names(app, pilot, ["newer", "busy", "later"])
            await pilot.press("s")
            await pilot.pause(0.5)
            assert "by cpu efficiency" in app.sub_title
            await pilot.press("e")
            await pilot.press("s", "s", "s")
            await wait_for_names(app, pilot, ["newer", "busy", "later", "done"])

    asyncio.run(look())


def test_cursor_stays_when_jobs_are_updated(data):
    async def look():
        app = top.JobsTop(top_arguments(data))
        async with app.run_test(size=(100, 24)) as pilot:
            await wait_for_names(app, pilot, ["busy", "later"])
            table = app.query_one(DataTable)
            assert table.cursor_row == 0
            for key, row in (("down", 1), ("up", 0)):
                await pilot.press(key)
                await pilot.pause(0.7)  # several updates
                assert table.cursor_row == row

    asyncio.run(look())


def test_narrow_terminal_shows_what_is_used_now(data):
    async def look():
        app = top.JobsTop(top_arguments(data))
        async with app.run_test(size=(60, 24)) as pilot:
            await wait_for_names(app, pilot, ["busy", "later"])
            table = app.query_one(DataTable)
            titles = [str(column.label) for column in table.ordered_columns]
            assert {"CPUS NOW", "MEMORY NOW"} < set(titles)
            assert "STARTED" not in titles
            assert table.virtual_size.width <= 60
            assert table.fixed_rows == 1  # the running job stays when the others scroll

    asyncio.run(look())


def test_enter_opens_the_report_of_a_job(data):
    async def look():
        app = top.JobsTop(top_arguments(data))
        async with app.run_test(size=(100, 24)) as pilot:
            await wait_for_names(app, pilot, ["busy", "later"])
            await pilot.press("down", "enter")
            for _ in range(int(scaled(400))):
                await pilot.pause(0.05)
                if isinstance(app.screen, top.JobReport) and app.screen.query(Static):
                    break
            assert "later" in str(app.screen.query_one(Static).render())
            await pilot.press("escape")
            await wait_for_names(app, pilot, ["busy", "later"])

    asyncio.run(look())


def test_unknown_state_is_an_error(data):
    with pytest.raises(SettingsError, match="expected one of"):
        top.run([f"--data={data}", "--state=done"])


def test_without_terminal_names_jobs_command(data, capsys):
    assert main(["top", f"--data={data}"]) == 2
    assert "expected a terminal; elsewhere use `batchjob jobs" in capsys.readouterr().err
