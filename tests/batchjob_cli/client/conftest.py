"""A data directory with runs, and a server for it."""

import threading
from pathlib import Path

import pytest
import uvicorn

from batchjob.local_runs import record
from batchjob.schedulers.states import JobState
from batchjob_cli.client.running_up import TOKEN_FILE, keep_file
from batchjob_cli.up import options, records, stack
from batchjob_stats_server import main as server_main
from batchjob_stats_server import services
from tests.batchjob_cli.client.local_runs import finished_run


@pytest.fixture
def data(tmp_path):
    """A data directory with three runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for run in (
        finished_run("align", tool="blast"),
        finished_run("align", JobState.FAILED, tool="blast"),
        finished_run("plot\x1b[2J", tool="=cmd()"),
    ):
        record.write(folder, run)
    return str(tmp_path)


@pytest.fixture
def server(data, tmp_path):
    """The same database, served; address and the path of a token's file."""
    chosen = options.settings([f"--data={data}"])
    url = records.record_runs(Path(data))
    settings = stack.server_settings(chosen, Path(data), url)
    start_token = stack.create_token("alice")
    app_services = services.build(settings)._replace(process_token=start_token)
    uvicorn_server = server_main.create_server(settings, app_services)
    with (
        keep_file(tmp_path / TOKEN_FILE, start_token.text),
        server_main.open_listener(("127.0.0.1", 0)) as listener,
    ):
        thread = threading.Thread(target=uvicorn.Server.run, args=(uvicorn_server, [listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", str(tmp_path / TOKEN_FILE)
        finally:
            uvicorn_server.should_exit = True
            thread.join()
