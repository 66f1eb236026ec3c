"""Log-in, rate limit and headers, and what a changed file does."""

import base64
import sys
import threading
import time
from http import HTTPStatus

import bcrypt
import pytest

from batchjob.settings import SettingsError
from batchjob_exporter.http.message import parse, text
from batchjob_exporter.http.passwords import Passwords
from batchjob_exporter.http.web import TokenBucket, Web
from batchjob_exporter.http.web_config import RateLimit


def hashed(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def request(authorization=""):
    line = f"\r\nAuthorization: {authorization}" if authorization else ""
    return parse(f"GET /x HTTP/1.1\r\nHost: n{line}".encode())


@pytest.fixture
def web(tmp_path):
    def start(content):
        (tmp_path / "web.yml").write_text(content)
        return Web(str(tmp_path / "web.yml"), lambda _: text(HTTPStatus.OK, "in"))

    return start


@pytest.fixture
def write(tmp_path):
    return (tmp_path / "web.yml").write_text


def test_without_a_file_everybody_may_come():
    web = Web("", lambda _: text(HTTPStatus.OK, "in"))
    assert web.answer(request()).status == 200
    assert not web.guarded


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic("alice", "sesame"), 200),
        (basic("zoë", "geheim: ü"), 200),
        (basic("alice", "wrong"), 401),
        (basic("alice", ""), 401),
        (basic("nobody", "sesame"), 401),
        (basic("alice", "x" * 100), 401),
        (basic("long", "y" * 72), 200),
        (basic("long", "y" * 73), 401),
        ("", 401),
        ("Bearer abc", 401),
        ("Basic ???", 401),
        ("Basic " + base64.b64encode(b"no colon").decode(), 401),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), 401),
        ("basic " + base64.b64encode(b"alice:sesame").decode(), 200),
    ],
)
def test_passwords(web, authorization, status):
    guard = web(
        f"basic_auth_users:\n  alice: {hashed('sesame')}\n"
        f"  zoë: {hashed('geheim: ü')}\n  long: {hashed('y' * 72)}\n"
    )
    assert guard.guarded
    for _ in range(2):  # computed, then remembered
        response = guard.answer(request(authorization))
        assert response.status == status
        assert ("WWW-Authenticate" in dict(response.headers)) == (status == 401)


def test_a_known_password_is_not_computed_again(monkeypatch):
    passwords = Passwords({"alice": hashed("sesame")})
    assert passwords.refusal(basic("alice", "sesame")) is None
    monkeypatch.setattr(bcrypt, "checkpw", None)
    assert passwords.refusal(basic("alice", "sesame")) is None


def test_wrong_guesses_do_not_push_out_who_is_known(monkeypatch):
    passwords = Passwords({"alice": hashed("sesame")})
    assert passwords.refusal(basic("alice", "sesame")) is None
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    for number in range(300):
        assert passwords.refusal(basic("alice", f"guess {number}")).status == 401
    monkeypatch.setattr(bcrypt, "checkpw", None)
    assert passwords.refusal(basic("alice", "sesame")) is None


def test_a_user_who_does_not_exist_takes_as_long_as_one_who_does(monkeypatch):
    used = []
    passwords = Passwords({"alice": hashed("sesame")})
    monkeypatch.setattr(bcrypt, "checkpw", lambda _, stored: used.append(stored[:7]) or False)
    passwords.refusal(basic("alice", "x"))
    passwords.refusal(basic("nobody", "x"))
    assert used == [b"$2b$04$", b"$2b$04$"]


def test_one_password_is_computed_at_a_time_and_few_wait(monkeypatch):
    running, most, go = [], [], threading.Event()

    def check(password, stored):
        running.append(1)
        most.append(len(running))
        assert go.wait(10)
        running.pop()
        return True

    passwords = Passwords({"alice": hashed("sesame")})
    monkeypatch.setattr(bcrypt, "checkpw", check)
    answers = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(passwords.refusal(basic("alice", n))))
        for n in "abc"
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert passwords.refusal(basic("alice", "one too many")).status == 429
    go.set()
    for thread in threads:
        thread.join(10)
    assert answers == [None] * 3
    assert max(most) == 1


def test_without_bcrypt_it_is_said_what_to_install(web, monkeypatch):
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(SettingsError, match=r"pip install 'batchjob-monitoring\[auth\]'"):
        web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")


def test_headers_come_with_every_answer(web):
    guard = web(
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
        f"basic_auth_users:\n  alice: {hashed('sesame')}\n"
    )
    for authorization in ("", basic("alice", "sesame")):
        assert dict(guard.answer(request(authorization)).headers)["X-Frame-Options"] == "deny"


def test_token_bucket():
    now = [0.0]
    bucket = TokenBucket(RateLimit(interval=2.0, burst=3), clock=lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 2.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_too_many_requests_get_429(web):
    guard = web("rate_limit:\n  interval: 1h\n  burst: 2\n")
    assert [guard.answer(request()).status for _ in range(3)] == [200, 200, 429]


def test_a_changed_file_counts_at_once(web, write, caplog):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    assert guard.answer(request(basic("alice", "sesame"))).status == 200
    write(f"basic_auth_users:\n  alice: {hashed('new password')}\n")
    assert guard.answer(request(basic("alice", "sesame"))).status == 401
    assert guard.answer(request(basic("alice", "new password"))).status == 200


def test_a_rate_limit_survives_another_change(web, write):
    guard = web("rate_limit:\n  interval: 1h\n  burst: 1\n")
    assert guard.answer(request()).status == 200
    write("rate_limit:\n  interval: 1h\n  burst: 1\nhttp_server_config:\n  http2: true\n")
    assert guard.answer(request()).status == 429


@pytest.mark.parametrize("content", ["a: [", "", "basic_auth_users:\n  alice: sesame\n"])
def test_a_broken_or_emptied_file_is_reported_once_and_the_old_one_stays(
    web, write, caplog, content
):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    write(content)
    for _ in range(3):
        assert guard.answer(request()).status == 401
        assert guard.answer(request(basic("alice", "sesame"))).status == 200
    (message,) = caplog.messages
    assert message.startswith("web configuration not reloaded: ")
    guard.reload()
    assert len(caplog.messages) == 2


def test_a_removed_file_changes_nothing(web, tmp_path, caplog):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    (tmp_path / "web.yml").unlink()
    assert guard.answer(request()).status == 401
    assert "No such file" in caplog.text
