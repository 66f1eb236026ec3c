"""The file format of exporter-toolkit, and one clear line for each way to get it wrong."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.web.config import Tls, WebConfig, read, warn_unsupported

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        (tmp_path / "web.yml").write_text(text)
        return str(tmp_path / "web.yml")

    return write


def test_all_settings(config_file, tmp_path):
    config = read(
        config_file(
            f"""
tls_server_config:
  cert_file: tls/cert.pem
  key_file: /etc/key.pem
  client_ca_file: ca.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [a.example.org, 192.0.2.1]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  curve_preferences: [X25519]
  prefer_server_cipher_suites: false
http_server_config:
  http2: false
  headers:
    X-Frame-Options: deny
    Strict-Transport-Security: max-age=600
basic_auth_users:
  alice: {HASH}
rate_limit:
  interval: 1s
  burst: 20
"""
        )
    )
    assert config.tls.files == (f"{tmp_path}/tls/cert.pem", "/etc/key.pem", f"{tmp_path}/ca.pem")
    assert config.tls.client_allowed_sans == ("a.example.org", "192.0.2.1")
    assert config.users == {"alice": HASH}
    assert config.ignored_keys == (
        "tls_server_config.cipher_suites", "tls_server_config.curve_preferences",
        "http_server_config.http2", "http_server_config.headers",
        "rate_limit.interval", "rate_limit.burst",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "basic_auth_users: {}\n"])
def test_empty_file(config_file, text):
    assert read(config_file(text)) == WebConfig()


TLS = "tls_server_config:\n  cert_file: c\n  key_file: k\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "web.yml: not YAML"),
        ("- a\n", "web.yml: expected a mapping"),
        ("\ntls_server_confg: {}\n", "web.yml:2: unknown key tls_server_confg; did you mean"),
        (TLS + "  cert_fil: x\n", "web.yml:4: unknown key tls_server_config.cert_fil; did you"),
        ("tls_server_config:\n  cert_file: c\n", "expected key_file"),
        ("tls_server_config:\n  key_file: c\n", "expected cert_file"),
        (TLS + "  cert: inline\n", "web.yml:4: unknown key tls_server_config.cert"),
        (TLS + "  client_auth_type: Maybe\n", "web.yml:4: .*expected one of NoClientCert"),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", "needs client_ca"),
        (TLS + "  client_ca_file: ca\n", "needs a client_auth_type"),
        (TLS + "  client_allowed_sans: [a]\n", "client_allowed_sans needs client_auth_type"),
        (TLS + "  client_allowed_sans: a\n", "web.yml:4: .*expected a list of names"),
        (TLS + "  min_version: TLS9\n", "web.yml:4: .*expected one of TLS10"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "min_version is above"),
        ("basic_auth_users:\n  alice: secret\n", "web.yml:1: .*'alice': expected a bcrypt hash"),
        ("basic_auth_users: [alice]\n", "expected a mapping of names"),
        (f"basic_auth_users:\n  'a:b': {HASH}\n", "cannot hold a colon"),
    ],
)
def test_invalid_settings_are_one_line_errors(config_file, text, complaint):
    with pytest.raises(SettingsError, match=complaint) as raised:
        read(config_file(text))
    assert "\n" not in str(raised.value)


def test_missing_file(tmp_path):
    with pytest.raises(SettingsError, match=r"nothing\.yml: No such file"):
        read(f"{tmp_path}/nothing.yml")


@given(st.text(max_size=100) | st.sampled_from(["1", "[]", "{}", "null", "a: b", "? {}\n: 1"]))
def test_arbitrary_text_raises_no_other_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("web") / "web.yml"
    for content in (text, f"tls_server_config: {text}", f"basic_auth_users: {text}"):
        path.write_text(content, encoding="utf-8", errors="replace")
        with contextlib.suppress(SettingsError):
            assert isinstance(read(str(path)), WebConfig)


def test_unsupported_settings_are_logged(caplog):
    warn_unsupported(WebConfig(Tls(client_auth_type="RequireAnyClientCert"), {}, ("rate_limit.x",)))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "rate_limit.x",
        "tls_server_config.client_auth_type",
    ]
