"""What starts or deletes runs is in the audit log, even if it fails in a way nobody foresaw."""

import uuid
from unittest import mock

import pytest

from batchjob.local_runs import record as run_files
from batchjob.local_runs.record import SupervisorProcess, new_run
from batchjob.schedulers.states import JobState
from tests.security.citizens.audits import audited
from tests.security.one_bad_citizen import Site


class BrokenControl:
    """Starts and deletes runs, and then fails."""

    cluster = "c1"

    def __init__(self, data):
        self.data = data

    def start(self, *_):
        raise LookupError("its record is gone")

    def delete(self, run):
        raise LookupError("its record is gone")


@pytest.mark.parametrize(
    ("method", "path", "body", "line"),
    [
        ("POST", "runs", {"command": ["rm", "-r", "a b"]}, "asked to start a run: \"rm -r 'a b'\""),
        ("DELETE", "runs?ended=true", None, "asked to delete all ended runs"),
    ],
)
def test_question_is_logged_before_it_is_done(tmp_path, method, path, body, line):
    site = Site(tmp_path)
    run = new_run(str(uuid.uuid4()), JobState.COMPLETED, SupervisorProcess(1, 1, "x"))
    run_files.write(site.data / "runs", run)
    services = site.services._replace(run_control=BrokenControl(site.data))
    try:
        with (
            mock.patch.object(site.client.app.state, "services", services),
            audited("root", line),
            pytest.raises(LookupError),
        ):
            site.client.request(method, f"/api/v1/{path}", json=body, headers=site.identity("root"))
    finally:
        site.close()
