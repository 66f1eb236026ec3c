"""A request passes through few files and functions, so that a reader can follow it.

The counts are upper bounds, with transport, log-in and limits; lower them when they fall.
"""

import pytest

from tests.helpers.crossed import Crossed, Recorder


@pytest.mark.parametrize(
    ("path", "accept", "most"),
    [
        ("/api/v1/jobs", "application/json", Crossed(17, 72)),
        ("/", "text/html", Crossed(35, 111)),
    ],
    ids=["list", "start page"],
)
def test_a_request_passes_through_few_files_and_functions(proxy_client, path, accept, most):
    recorder = Recorder()
    with recorder.installed(), proxy_client("alice") as client:
        for _ in range(2):  # what is done once is not counted
            assert client.get(path, headers={"Accept": accept}).status_code == 200
        with recorder.recording():
            client.get(path, headers={"Accept": accept})
    crossed = recorder.crossed()
    assert crossed.files <= most.files
    assert crossed.functions <= most.functions
