"""A data directory's jobs as `batchjob up` serves them, without its processes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fastapi.testclient import TestClient

from batchjob_cli.up import options, records, stack
from batchjob_stats_server import app, services


@contextlib.contextmanager
def serve_data(data: Path) -> Iterator[TestClient]:
    """A client that may see all jobs; what is on record by now is in the database."""
    url = records.record_runs(data)
    settings = stack.server_settings(options.settings([f"--data={data}"]), data, url)
    own = stack.create_token("alice")
    app_services = services.build(settings)._replace(process_token=own)
    headers = {"Authorization": f"Bearer {own.text}"}
    try:
        with TestClient(
            app.make(app_services), base_url="http://localhost", headers=headers
        ) as client:
            yield client
    finally:
        app_services.stop()


def plain_text(page: str) -> str:
    """The text of an answer with plain spaces."""
    return " ".join(page.replace("\u202f", " ").replace("&nbsp;", " ").split())
