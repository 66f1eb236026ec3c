"""Basic authentication, rate limit, headers, and reload of the file."""

import base64
import sys
from http import HTTPStatus

import bcrypt
import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import parse_request, text_response
from batchjob_exporter.web.passwords import Passwords


def password_hash(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic_authorization(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def get_request(authorization=""):
    line = f"\r\nAuthorization: {authorization}" if authorization else ""
    return parse_request(f"GET /x HTTP/1.1\r\nHost: n{line}".encode())


def answer_request(guard, authorization=""):
    """As the server has it: a password is checked before the request is answered."""
    request = get_request(authorization)
    if guard.needs_verification(request):
        guard.verify(request)
        assert not guard.needs_verification(request)
    return guard.answer(request)


@pytest.fixture
def web(tmp_path):
    def start(content):
        (tmp_path / "web.yml").write_text(content)
        return WebAccess(str(tmp_path / "web.yml"), lambda _: text_response(HTTPStatus.OK, "in"))

    return start


@pytest.fixture
def write_config(tmp_path):
    return (tmp_path / "web.yml").write_text


def test_every_request_is_allowed_without_config_file():
    web = WebAccess("", lambda _: text_response(HTTPStatus.OK, "in"))
    assert answer_request(web).status == 200
    assert not web.requires_authentication


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic_authorization("alice", "sesame"), 200),
        (basic_authorization("zoë", "geheim: ü"), 200),
        (basic_authorization("alice", "wrong"), 401),
        (basic_authorization("alice", ""), 401),
        (basic_authorization("nobody", "sesame"), 401),
        (basic_authorization("alice", "x" * 100), 401),
        (basic_authorization("long", "y" * 72), 200),
        (basic_authorization("long", "y" * 73), 401),
        ("", 401),
        ("Bearer abc", 401),
        ("Basic ???", 401),
        ("Basic " + base64.b64encode(b"no colon").decode(), 401),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), 401),
        ("basic " + base64.b64encode(b"alice:sesame").decode(), 200),
    ],
)
def test_basic_auth(web, authorization, status):
    guard = web(
        f"basic_auth_users:\n  alice: {password_hash('sesame')}\n"
        f"  zoë: {password_hash('geheim: ü')}\n  long: {password_hash('y' * 72)}\n"
    )
    assert guard.requires_authentication
    for _ in range(2):  # computed, then remembered
        response = answer_request(guard, authorization)
        assert response.status == status
        assert ("WWW-Authenticate" in dict(response.headers)) == (status == 401)


def test_verified_password_is_cached(monkeypatch):
    passwords = Passwords({"alice": password_hash("sesame")})
    assert passwords.cached_result(basic_authorization("alice", "sesame")) is None
    assert passwords.check(basic_authorization("alice", "sesame"))
    monkeypatch.setattr(bcrypt, "checkpw", None)
    assert passwords.cached_result(basic_authorization("alice", "sesame"))
    assert passwords.check(basic_authorization("alice", "sesame"))


def test_wrong_passwords_do_not_evict_verified_ones(monkeypatch):
    passwords = Passwords({"alice": password_hash("sesame")})
    assert passwords.check(basic_authorization("alice", "sesame"))
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    for number in range(300):
        assert not passwords.check(basic_authorization("alice", f"guess {number}"))
    assert passwords.cached_result(basic_authorization("alice", "sesame"))


def test_unknown_user_costs_the_same_hash_as_known_user(monkeypatch):
    stored_prefixes = []
    passwords = Passwords({"alice": password_hash("sesame")})
    monkeypatch.setattr(
        bcrypt, "checkpw", lambda _, stored: stored_prefixes.append(stored[:7]) or False
    )
    passwords.check(basic_authorization("alice", "x"))
    passwords.check(basic_authorization("nobody", "x"))
    assert stored_prefixes == [b"$2b$04$", b"$2b$04$"]


@pytest.mark.parametrize("authorization", ["", "Bearer abc", "Basic ???"])
def test_malformed_authorization_is_rejected_without_verification(web, authorization):
    guard = web(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")
    assert not guard.needs_verification(get_request(authorization))
    assert guard.answer(get_request(authorization)).status == 401


def test_missing_bcrypt_names_the_package_to_install(web, monkeypatch):
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(SettingsError, match=r"pip install 'batchjob-monitoring\[auth\]'"):
        web(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")


def test_changed_file_takes_effect_at_once(web, write_config, caplog):
    guard = web(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")
    assert answer_request(guard, basic_authorization("alice", "sesame")).status == 200
    write_config(f"basic_auth_users:\n  alice: {password_hash('new password')}\n")
    assert answer_request(guard, basic_authorization("alice", "sesame")).status == 401
    assert answer_request(guard, basic_authorization("alice", "new password")).status == 200


@pytest.mark.parametrize("content", ["a: [", "", "basic_auth_users:\n  alice: sesame\n"])
def test_invalid_file_is_reported_once_and_old_settings_stay(web, write_config, caplog, content):
    guard = web(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")
    write_config(content)
    for _ in range(3):
        assert answer_request(guard).status == 401
        assert answer_request(guard, basic_authorization("alice", "sesame")).status == 200
    (message,) = caplog.messages
    assert message.startswith("web configuration not reloaded: ")
    guard.reload()
    assert len(caplog.messages) == 2


def test_removed_file_keeps_old_settings(web, tmp_path, caplog):
    guard = web(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")
    (tmp_path / "web.yml").unlink()
    assert answer_request(guard).status == 401
    assert "No such file" in caplog.text
