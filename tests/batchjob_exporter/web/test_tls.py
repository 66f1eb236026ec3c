"""HTTPS with real handshakes: client certificates, reload, and clients that stall."""

import contextlib
import http.client
import os
import socket
import ssl
from http import HTTPStatus

import pytest
import trustme

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import HttpResponse, text_response
from tests.batchjob_exporter.web.raw_http import GET
from tests.helpers.waiting import scaled
from tests.private_keys import write_key


class Site:
    """Certificates of a site, in a directory with the web configuration file."""

    def __init__(self, directory):
        self.directory = directory
        self.ca, self.clients_ca, self.stranger_ca = (trustme.CA() for _ in range(3))
        self.clients_ca.cert_pem.write_to_path(directory / "clients.pem")
        self.path = str(directory / "web.yml")
        self.new_certificate()

    def new_certificate(self):
        server = self.ca.issue_cert("127.0.0.1", "localhost")
        write_key(server, self.directory / "key.pem")
        with (self.directory / "cert.pem").open("wb") as file:
            file.writelines(blob.bytes() for blob in server.cert_chain_pems)

    def configure(self, **tls):
        keys = {"cert_file": "cert.pem", "key_file": "key.pem"} | tls
        lines = [f"  {key}: {value}\n" for key, value in keys.items() if value is not None]
        (self.directory / "web.yml").write_text("tls_server_config:\n" + "".join(lines))
        (self.directory / "web.yml").chmod(0o600)
        return self.path

    def client_context(self, ca=None, *names):
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if ca is not None:
            ca.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def serve_web(serve):
    def start(path, **more):
        web = WebAccess(path, lambda request: text_response(HTTPStatus.OK, request.path))
        return serve(web=web, **more)

    return start


def fetch(address, context):
    client = http.client.HTTPSConnection(*address, context=context, timeout=scaled(5))
    with contextlib.closing(client):
        client.request("GET", "/x")
        return client.getresponse().read()


REFUSED = (ssl.SSLError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)


def test_https(site, serve_web):
    assert fetch(serve_web(site.configure()), site.client_context()) == b"/x\n"


# Which clients are accepted, by client_auth_type: without a certificate, with a good one, with
# one of another authority.
@pytest.mark.parametrize(
    ("auth_type", "without", "good", "stranger"),
    [
        ("NoClientCert", True, True, True),
        ("RequestClientCert", True, True, True),
        ("RequireAnyClientCert", False, True, False),
        ("RequireClientCert", False, True, False),
        ("VerifyClientCertIfGiven", True, True, False),
        ("RequireAndVerifyClientCert", False, True, False),
    ],
)
def test_client_auth_types(site, serve_web, auth_type, without, good, stranger):
    ca_file = None if auth_type == "NoClientCert" else "clients.pem"
    address = serve_web(site.configure(client_auth_type=auth_type, client_ca_file=ca_file))
    contexts = {
        "without": site.client_context(),
        "good": site.client_context(site.clients_ca, "prometheus.example.org"),
        "stranger": site.client_context(site.stranger_ca, "prometheus.example.org"),
    }
    accepted = {}
    for name, context in contexts.items():
        try:
            accepted[name] = fetch(address, context) == b"/x\n"
        except REFUSED:
            accepted[name] = False
    assert accepted == {"without": without, "good": good, "stranger": stranger}


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (["prometheus.example.org"], True),
        (["other.example.org", "prometheus.example.org"], True),
        (["2001:db8::7"], True),
        (["me@example.org"], True),
        (["sub.prometheus.example.org"], False),
        (["192.0.2.1"], False),
    ],
)
def test_client_allowed_sans(site, serve_web, names, allowed):
    path = site.configure(
        client_auth_type="RequireAndVerifyClientCert",
        client_ca_file="clients.pem",
        client_allowed_sans="[prometheus.example.org, '2001:db8::7', me@example.org]",
    )
    context = site.client_context(site.clients_ca, *names)
    address = serve_web(path)
    if allowed:
        assert fetch(address, context) == b"/x\n"
    else:
        with pytest.raises(REFUSED):
            fetch(address, context)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_min_version(site, serve_web, version):
    address = serve_web(site.configure(min_version="TLS13"))
    context = site.client_context()
    context.maximum_version = ssl.TLSVersion[version]
    if version == "TLSv1_3":
        assert fetch(address, context) == b"/x\n"
    else:
        with pytest.raises(ssl.SSLError):
            fetch(address, context)


def test_stalled_handshakes_delay_no_other_client(site, serve_web, connect):
    address = serve_web(site.configure())
    for begun in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        for _ in range(20):
            connect(address).sendall(begun)
    assert fetch(address, site.client_context()) == b"/x\n"


@pytest.mark.parametrize("sent", [b"\x00" * 100, os.urandom(300), b"\x16\x03\x01\x00\x01\x00"])
def test_garbage_instead_of_handshake_stops_no_other_client(site, serve_web, connect, sent):
    address = serve_web(site.configure())
    client = connect(address)
    with contextlib.suppress(OSError):  # it may have been sent away before it is done
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1000):
            pass
    assert fetch(address, site.client_context()) == b"/x\n"


def test_plain_http_request_gets_explanation(site, serve_web, connect):
    client = connect(serve_web(site.configure()))
    client.sendall(GET)
    assert b"this port speaks HTTPS" in client.recv(1000)


def test_large_response_over_tls(site, serve):
    large = HttpResponse(HTTPStatus.OK, os.urandom(3_000_000))
    web = WebAccess(site.configure(), lambda _: large)
    assert fetch(serve(web=web), site.client_context()) == large.body


def test_keep_alive_over_tls(site, serve_web):
    client = http.client.HTTPSConnection(
        *serve_web(site.configure()), context=site.client_context(), timeout=scaled(5)
    )
    with contextlib.closing(client):
        for path in ("/one", "/two"):
            client.request("GET", path)
            assert client.getresponse().read() == f"{path}\n".encode()


def fetch_certificate(address, context):
    with (
        socket.create_connection(address, timeout=scaled(5)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        return client.getpeercert(binary_form=True)


def test_renewed_certificate_is_used_at_once(site, serve_web):
    address, context = serve_web(site.configure()), site.client_context()
    before = fetch_certificate(address, context)
    assert fetch_certificate(address, context) == before
    site.new_certificate()
    assert fetch_certificate(address, context) != before


def test_invalid_certificate_is_reported_and_old_one_stays(site, serve_web, caplog):
    address, context = serve_web(site.configure()), site.client_context()
    before = fetch_certificate(address, context)
    (site.directory / "cert.pem").write_text("nonsense")
    assert fetch_certificate(address, context) == before
    assert fetch_certificate(address, context) == before
    (message,) = caplog.messages
    assert "not reloaded" in message
    assert "cert.pem" in message
    site.new_certificate()
    assert fetch_certificate(address, context) != before


def test_emptied_file_does_not_switch_tls_off(site, serve_web, caplog):
    address = serve_web(site.configure())
    (site.directory / "web.yml").write_text("")
    assert fetch(address, site.client_context()) == b"/x\n"
    assert "only by a restart" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "tls"),
    [
        ("nothing.pem: No such file", {"cert_file": "nothing.pem"}),
        ("cert.pem: certificate and key cannot be used", {"key_file": "cert.pem"}),
        ("key.pem: expected CA certificates", {
            "client_ca_file": "key.pem", "client_auth_type": "RequireAndVerifyClientCert"
        }),
    ],
)  # fmt: skip
def test_unusable_certificate_files_are_named(site, wrong, tls):
    with pytest.raises(SettingsError, match=wrong):
        WebAccess(site.configure(**tls))
