"""A crowd of hostile clients is in the way, and a scraper gets its metrics all the same.

Each attack takes about two seconds; with --long there are a thousand clients, all kinds come from
one address and from fifty, and those who talk go on for half a minute each time.
benchmarks/hostile.py says how long a scrape takes meanwhile.
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

LONG = {"talking": 30.0}  # seconds


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(request, tmp_path_factory):
    with scraped(request.param, tmp_path_factory.mktemp(request.param)) as made:
        for _ in range(3):  # a password is computed once
            assert made.scrape()[0] == 200
        yield made


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("addresses", [1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scrape_is_answered_meanwhile(server, kind, addresses, long_form):
    if addresses > 1 and server.context is not None and not long_form:
        pytest.skip("only with --long")
    before = threads(server.target.pid)
    tls = server.context is not None
    clients, seconds = (1000, LONG.get(kind, 5.0)) if long_form else (300, 0.5)
    with hostile(kind, clients, server.address, tls=tls, addresses=addresses) as crowd:
        time.sleep(1)
        until, statuses = time.monotonic() + seconds, []
        while time.monotonic() < until:
            statuses.append(server.scrape()[0])
            time.sleep(0.1)
    assert set(statuses) == {200}
    assert crowd.said.connected > 256  # twice as many as there are places
    assert threads(server.target.pid) <= before + 2
    assert resident_bytes(server.target.pid, peak=True) < 80e6
    assert server.scrape()[0] == 200


@pytest.mark.parametrize("kind", ["silent", "slow", "talking", "greeting slowly", "knocking"])
def test_even_from_the_address_of_the_crowd(server, kind, long_form):
    tls = server.context is not None
    if tls and not long_form:
        pytest.skip("only with --long")
    # A handshake takes a few turns, in which it may become the longest waiting: no more than fit,
    # with those of the crowd before who have just left.
    clients = 60 if tls else 1000 if long_form else 300
    with hostile(kind, clients, server.address, tls=tls, pace=500):
        time.sleep(1)
        statuses = []
        for _ in range(50 if long_form else 5):
            statuses.append(server.scrape(source="127.0.0.2")[0])
            time.sleep(0.1)
    assert set(statuses) == {200}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_guessers_do_not_keep_out_a_scraper_that_nobody_remembers(tmp_path, source):
    with scraped("tls", tmp_path) as server:
        with hostile("guessing", 5, server.address, tls=True):
            time.sleep(1)
            statuses = [server.scrape(source)[0] for _ in range(5)]
        assert statuses == [200] * 5


def test_a_password_that_was_changed_meanwhile_counts(tmp_path):
    with scraped("tls", tmp_path) as server, hostile("guessing", 5, server.address, tls=True):
        assert server.scrape()[0] == 200
        text = (tmp_path / "web.yml").read_text()
        head = text.partition("basic_auth_users:")[0]
        new = bcrypt.hashpw(b"new", bcrypt.gensalt(10)).decode()
        (tmp_path / "web.yml").write_text(f"{head}basic_auth_users:\n  prom: {new}\n")
        assert server.scrape()[0] == 401
        server.headers["Authorization"] = "Basic " + base64.b64encode(b"prom:new").decode()
        assert server.scrape()[0] == 200
