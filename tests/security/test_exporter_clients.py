"""A scraper gets its metrics while many hostile clients attack the exporter.

Each attack takes about two seconds; with --long there are a thousand clients, all kinds come from
one address and from fifty, and clients of the kind "talking" attack for half a minute each time.
benchmarks/hostile.py measures how long a scrape takes meanwhile.
"""

import base64
import os
import time

import bcrypt
import pytest

from benchmarks.measure import resident_bytes
from tests.security.hostile_clients import KINDS, hostile
from tests.security.scraped_exporter import TRANSPORTS, scraped

pytestmark = pytest.mark.e2e

LONG_FORM_SECONDS = {"talking": 30.0}


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(request, tmp_path_factory):
    with scraped(request.param, tmp_path_factory.mktemp(request.param)) as server:
        for _ in range(3):  # the hash of a password is computed once
            assert server.scrape()[0] == 200
        yield server


def thread_count(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("addresses", [1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_scrape_is_answered_during_attack(server, kind, addresses, long_form):
    if addresses > 1 and server.context is not None and not long_form:
        pytest.skip("only with --long")
    threads_before = thread_count(server.target.pid)
    tls = server.context is not None
    clients, seconds = (1000, LONG_FORM_SECONDS.get(kind, 5.0)) if long_form else (300, 0.5)
    with hostile(kind, clients, server.address, tls=tls, addresses=addresses) as crowd:
        time.sleep(1)
        until, statuses = time.monotonic() + seconds, []
        while time.monotonic() < until:
            statuses.append(server.scrape()[0])
            time.sleep(0.1)
    assert set(statuses) == {200}
    assert crowd.outcome.connected > 256  # twice as many as there are places
    assert thread_count(server.target.pid) <= threads_before + 2
    assert resident_bytes(server.target.pid, peak=True) < 80e6
    assert server.scrape()[0] == 200


@pytest.mark.parametrize("kind", ["silent", "slow", "talking", "greeting slowly", "knocking"])
def test_scrape_from_attacking_address_is_answered(server, kind, long_form):
    tls = server.context is not None
    if tls and not long_form:
        pytest.skip("only with --long")
    # A handshake takes a few rounds, during which the scraper may become the longest idle client:
    # no more clients than the server has places, with those of the previous attack.
    clients = 60 if tls else 1000 if long_form else 300
    with hostile(kind, clients, server.address, tls=tls, pace=500):
        time.sleep(1)
        statuses = []
        for _ in range(50 if long_form else 5):
            statuses.append(server.scrape(source="127.0.0.2")[0])
            time.sleep(0.1)
    assert set(statuses) == {200}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_password_guessing_does_not_lock_out_new_scraper(tmp_path, source):
    with scraped("tls", tmp_path) as server:
        with hostile("guessing", 5, server.address, tls=True):
            time.sleep(1)
            statuses = [server.scrape(source)[0] for _ in range(5)]
        assert statuses == [200] * 5


def test_password_change_applies_during_attack(tmp_path):
    with scraped("tls", tmp_path) as server, hostile("guessing", 5, server.address, tls=True):
        assert server.scrape()[0] == 200
        text = (tmp_path / "web.yml").read_text()
        config = text.partition("basic_auth_users:")[0]
        password_hash = bcrypt.hashpw(b"new", bcrypt.gensalt(10)).decode()
        (tmp_path / "web.yml").write_text(f"{config}basic_auth_users:\n  prom: {password_hash}\n")
        assert server.scrape()[0] == 401
        server.headers["Authorization"] = "Basic " + base64.b64encode(b"prom:new").decode()
        assert server.scrape()[0] == 200
