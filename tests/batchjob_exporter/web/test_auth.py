"""Log-in, rate limit and headers, and what a changed file does."""

import base64
import sys
from http import HTTPStatus

import bcrypt
import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.web.auth import TokenBucket, WebAccess
from batchjob_exporter.web.config import RateLimit
from batchjob_exporter.web.message import parse_request, text_response
from batchjob_exporter.web.passwords import Passwords


def hashed(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def request(authorization=""):
    line = f"\r\nAuthorization: {authorization}" if authorization else ""
    return parse_request(f"GET /x HTTP/1.1\r\nHost: n{line}".encode())


def come_in(guard, authorization=""):
    """As the server has it: a password is checked before the request is answered."""
    asked = request(authorization)
    if guard.needs_verification(asked):
        guard.verify(asked)
        assert not guard.needs_verification(asked)
    return guard.answer(asked)


@pytest.fixture
def web(tmp_path):
    def start(content):
        (tmp_path / "web.yml").write_text(content)
        return WebAccess(str(tmp_path / "web.yml"), lambda _: text_response(HTTPStatus.OK, "in"))

    return start


@pytest.fixture
def write(tmp_path):
    return (tmp_path / "web.yml").write_text


def test_without_a_file_everybody_may_come():
    web = WebAccess("", lambda _: text_response(HTTPStatus.OK, "in"))
    assert come_in(web).status == 200
    assert not web.requires_authentication


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
    assert guard.requires_authentication
    for _ in range(2):  # computed, then remembered
        response = come_in(guard, authorization)
        assert response.status == status
        assert ("WWW-Authenticate" in dict(response.headers)) == (status == 401)


def test_a_known_password_is_not_computed_again(monkeypatch):
    passwords = Passwords({"alice": hashed("sesame")})
    assert passwords.cached_result(basic("alice", "sesame")) is None
    assert passwords.check(basic("alice", "sesame"))
    monkeypatch.setattr(bcrypt, "checkpw", None)
    assert passwords.cached_result(basic("alice", "sesame"))
    assert passwords.check(basic("alice", "sesame"))


def test_wrong_guesses_do_not_push_out_who_is_known(monkeypatch):
    passwords = Passwords({"alice": hashed("sesame")})
    assert passwords.check(basic("alice", "sesame"))
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    for number in range(300):
        assert not passwords.check(basic("alice", f"guess {number}"))
    assert passwords.cached_result(basic("alice", "sesame"))


def test_a_user_who_does_not_exist_takes_as_long_as_one_who_does(monkeypatch):
    used = []
    passwords = Passwords({"alice": hashed("sesame")})
    monkeypatch.setattr(bcrypt, "checkpw", lambda _, stored: used.append(stored[:7]) or False)
    passwords.check(basic("alice", "x"))
    passwords.check(basic("nobody", "x"))
    assert used == [b"$2b$04$", b"$2b$04$"]


@pytest.mark.parametrize("authorization", ["", "Bearer abc", "Basic ???"])
def test_what_is_no_log_in_needs_no_check(web, authorization):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    assert not guard.needs_verification(request(authorization))
    assert guard.answer(request(authorization)).status == 401


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
        assert dict(come_in(guard, authorization).headers)["X-Frame-Options"] == "deny"


def test_token_bucket():
    now = [0.0]
    bucket = TokenBucket(RateLimit(interval=2.0, burst=3), clock=lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 2.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_the_rate_of_requests_is_limited(web):
    guard = web("rate_limit:\n  interval: 1h\n  burst: 2\n")
    assert [guard.take_token() for _ in range(3)] == [True, True, False]


def test_a_changed_file_counts_at_once(web, write, caplog):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    assert come_in(guard, basic("alice", "sesame")).status == 200
    write(f"basic_auth_users:\n  alice: {hashed('new password')}\n")
    assert come_in(guard, basic("alice", "sesame")).status == 401
    assert come_in(guard, basic("alice", "new password")).status == 200


def test_a_rate_limit_survives_another_change(web, write):
    guard = web("rate_limit:\n  interval: 1h\n  burst: 1\n")
    assert guard.take_token()
    write("rate_limit:\n  interval: 1h\n  burst: 1\nhttp_server_config:\n  http2: true\n")
    assert not guard.take_token()


@pytest.mark.parametrize("content", ["a: [", "", "basic_auth_users:\n  alice: sesame\n"])
def test_a_broken_or_emptied_file_is_reported_once_and_the_old_one_stays(
    web, write, caplog, content
):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    write(content)
    for _ in range(3):
        assert come_in(guard).status == 401
        assert come_in(guard, basic("alice", "sesame")).status == 200
    (message,) = caplog.messages
    assert message.startswith("web configuration not reloaded: ")
    guard.reload()
    assert len(caplog.messages) == 2


def test_a_removed_file_changes_nothing(web, tmp_path, caplog):
    guard = web(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    (tmp_path / "web.yml").unlink()
    assert come_in(guard).status == 401
    assert "No such file" in caplog.text
