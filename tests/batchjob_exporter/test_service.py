"""An exporter within another program, which opens its listener again when it goes deaf."""

import threading
import time
import urllib.request

import pytest

from batchjob_exporter.options import parse_settings
from batchjob_exporter.service import ExporterService, watch_listeners
from tests.helpers.processes import free_ports
from tests.helpers.waiting import scaled, until


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


def is_healthy(service):
    with urllib.request.urlopen(
        f"http://{service.addresses[0]}/-/healthy", timeout=scaled(5)
    ) as answer:
        return answer.status == 200


def test_unresponsive_listener_is_detected_and_reopened(service, monkeypatch, caplog):
    assert service.is_answering(10)
    go, wrap = threading.Event(), service.web.wrap
    # The thread that owns the sockets gets stuck with the next client.
    monkeypatch.setattr(service.web, "wrap", lambda client: go.wait(scaled(60)) and wrap(client))
    assert not service.is_answering(0.2)
    monkeypatch.setattr(service.web, "wrap", wrap)
    watching = watch_listeners(service, seconds=0.05, timeout=0.2)
    watching.start()
    try:
        until(lambda: any("listening again" in message for message in caplog.messages), "noticed")
        until(lambda: service.is_answering(5), "heard again")
        assert is_healthy(service)
    finally:
        watching.stop()
        go.set()


def test_listener_that_never_answered_is_not_given_up(service, monkeypatch):
    monkeypatch.setattr("batchjob_exporter.service.is_answering", lambda *_: False)
    for _ in range(3):
        assert service.is_answering(5)


def test_stuck_thread_of_replaced_listener_is_harmless(service, monkeypatch):
    go, wrap = threading.Event(), service.web.wrap
    assert service.is_answering(10)
    monkeypatch.setattr(service.web, "wrap", lambda client: go.wait(scaled(60)) and wrap(client))
    assert not service.is_answering(0.1)
    monkeypatch.setattr(service.web, "wrap", wrap)
    service.reopen_listeners()
    go.set()
    time.sleep(0.2)
    for _ in range(3):
        assert service.is_answering(10)
        assert is_healthy(service)
