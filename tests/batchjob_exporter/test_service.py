"""Whether an exporter answers."""

import threading

import pytest

from batchjob_exporter.options import parse_settings
from batchjob_exporter.service import ExporterService
from tests.helpers.processes import free_ports
from tests.helpers.waiting import scaled


@pytest.fixture
def service():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    exporter_service = ExporterService(
        parse_settings(
            ["--collector.disable-defaults", "--collector.node", f"--web.listen-address={address}"]
        )
    )
    exporter_service.start()
    yield exporter_service
    exporter_service.stop()


def test_stuck_server_does_not_answer(service, monkeypatch):
    assert service.is_answering(10)
    go, wrap = threading.Event(), service.web.wrap
    # The thread that owns the sockets gets stuck with the next client.
    monkeypatch.setattr(service.web, "wrap", lambda client: go.wait(scaled(60)) and wrap(client))
    assert not service.is_answering(0.2)
    go.set()


def test_listener_that_never_answered_is_not_given_up(service, monkeypatch):
    monkeypatch.setattr("batchjob_exporter.web.addresses.is_answering", lambda *_: False)
    for _ in range(3):
        assert service.is_answering(5)
