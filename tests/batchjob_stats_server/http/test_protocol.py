"""Over real sockets: client certificates, slow clients, and malformed or oversized requests."""

import datetime as dt
import json
import re
import select
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from batchjob_stats_server.auth.certificates import Certificates
from batchjob_stats_server.http.protocol import Connection
from batchjob_stats_server.main import open_listener
from tests.batchjob_stats_server.authority import Authority, pem, write_pair
from tests.batchjob_stats_server.serving import exchange_bytes, serving
from tests.helpers.waiting import scaled, until
from tests.private_keys import write_key

VERA = (("CN", "vera"), ("OU", "viewer"))


@pytest.fixture(scope="module")
def authority():
    return Authority("the site", dt.datetime.now(dt.UTC))


@pytest.fixture
def tls_services(services, tmp_path, authority):
    """Services with TLS and client certificates, at the real time, as TLS checks validity by it."""
    site = trustme.CA()
    leaf = site.issue_cert("127.0.0.1")
    write_key(leaf, tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    site.cert_pem.write_to_path(tmp_path / "site.pem")
    (tmp_path / "ca.pem").write_bytes(pem(authority.certificate))
    (tmp_path / "crl.pem").write_bytes(authority.revocation_list())
    files = {"client_ca_file": f"{tmp_path}/ca.pem", "client_crl_file": f"{tmp_path}/crl.pem"}
    settings = services.settings
    settings = settings._replace(
        web=settings.web.__class__(
            threads=4, tls_cert_file=f"{tmp_path}/cert.pem", tls_key_file=f"{tmp_path}/key.pem"
        ),
        auth=settings.auth.__class__(
            **{**settings.auth.__dict__, **files, "trusted_peer": ()},
        ),
    )
    return services._replace(
        settings=settings, clock=time.time, certificates=Certificates(*files.values())
    )


@pytest.fixture
def get_over_tls(tls_services, tmp_path):
    """Request a path with a client certificate and headers: the status and the document."""
    with serving(tls_services) as port:

        def get(pair=None, headers=None, path="/api/v1/me", version=None):
            context = ssl.create_default_context(cafile=tmp_path / "site.pem")
            context.maximum_version = version or ssl.TLSVersion.TLSv1_3
            if pair:
                context.load_cert_chain(write_pair(tmp_path, "client", *pair))
            request = urllib.request.Request(
                f"https://127.0.0.1:{port}{path}", headers=headers or {}
            )
            try:
                with urllib.request.urlopen(request, context=context, timeout=scaled(10)) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        get.port = port
        yield get


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificate_identifies_user(get_over_tls, authority, version):
    status, me = get_over_tls(authority.issue(*VERA), version=version)
    assert (status, me["user"], me["role"], me["via"]) == (200, "vera", "viewer", "certificate")
    assert get_over_tls(authority.issue(("CN", "root"), ("OU", "admin")))[1]["role"] == "admin"


def test_token_works_beside_client_certificates(get_over_tls, token_headers):
    headers = token_headers("alice")
    # The token was made at the test's own time, which the real clock has passed.
    assert get_over_tls(headers=headers)[1]["via"] == "token"
    assert get_over_tls()[0] == 401


def test_certificate_with_token_is_rejected(get_over_tls, authority, token_headers):
    status, problem = get_over_tls(authority.issue(*VERA), token_headers("alice"))
    assert (status, problem["detail"]) == (400, "expected one identity, got several")
    assert get_over_tls(authority.issue(("CN", "vera")), token_headers("alice"))[0] == 400


def test_certificate_rejected_by_application_gives_problem_document(
    get_over_tls, authority, tmp_path
):
    assert "one OU" in get_over_tls(authority.issue(("CN", "vera")))[1]["detail"]
    assert "login" in get_over_tls(authority.issue(("CN", "a, b"), ("OU", "admin")))[1]["detail"]
    pair = authority.issue(*VERA)
    assert get_over_tls(pair)[0] == 200
    (tmp_path / "crl.pem").write_bytes(authority.revocation_list(pair[0]))
    status, problem = get_over_tls(pair)
    assert (status, problem["detail"]) == (401, "the certificate has been revoked")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("what", ["another CA", "expired", "a server's"])
def test_certificate_rejected_by_tls_gives_alert(
    get_over_tls, authority, tls_services, what, version
):
    pair, alert = {
        "another CA": lambda: (Authority("x", authority.now).issue(*VERA), "unknown ca"),
        "expired": lambda: (authority.issue(*VERA, days=-1), "expired"),
        "a server's": lambda: (
            authority.issue(*VERA, usage=ExtendedKeyUsageOID.SERVER_AUTH), "unsupported cert",
        ),
    }[what]()  # fmt: skip
    with pytest.raises((OSError, urllib.error.URLError)) as raised:
        get_over_tls(pair, version=version)
    assert alert in str(raised.value).lower().replace("_", " ")
    name, reason = "batchjob_stats_server_refused_total", {"reason": "certificate"}
    assert tls_services.metrics.registry.get_sample_value(name, reason) == 1


def test_tls_1_1_is_rejected(get_over_tls):
    with (
        pytest.warns(DeprecationWarning, match="TLSv1"),
        pytest.raises(OSError, match=r"(?i)version|protocol"),
    ):
        get_over_tls(version=ssl.TLSVersion.TLSv1_1)


@pytest.fixture(autouse=True)
def shorten_linger(monkeypatch):
    monkeypatch.setattr("batchjob_stats_server.http.protocol.LINGER_SECONDS", 0.5)


@pytest.fixture
def port(services):
    with serving(services) as at:
        yield at


def problem(answer):
    """Status and document of an answer, as bytes off the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    return int(head.split()[1]), json.loads(body)


END = b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
CHUNKED_AND = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKS = b"POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"GET /api/v1/me?x=" + b"x" * 20_000 + END], 414),
        ([b"GET /api/v1/me?x=", *[b"x" * 1_000_000] * 10, END], 414),
        ([b"GET / HTTP/1.1\r\nhost: x\r\nx: ", *[b"x" * 1_000_000] * 10, b"\r\n\r\n"], 431),
        (
            [
                b"POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                b"content-length: 10000000\r\n\r\n",
                *[b"x" * 1_000_000] * 10,
            ],
            413,
        ),
        ([b"\x16\x03\x01 hello\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"], 400),
        (
            [
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n"
                b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            ],
            400,
        ),
        ([b"GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n\tb\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\nhost: x\n\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\nx: a\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"y" * 40_000 + b"\r\n\r\n"], 431),
        ([b"GET / HTTP/1.1\r\nhost: [\r\nconnection: close\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\n : a\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost : x\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n"], 400),
        ([b"GET /\r\n\r\n"], 400),
        ([b"GET / HTTP/2.0\r\nhost: x\r\n\r\n"], 400),
        ([b"GET / RTSP/1.0\r\nhost: x\r\n\r\n"], 400),
        ([b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n"], 400),
        ([b"GET http://x/ HTTP/1.1\r\nhost: x\r\n\r\n"], 400),
        ([b"CONNECT /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"], 400),
        ([b"\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"], 400),
        ([b"\x16\x03\x01 without an end of line"], 400),
        ([b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\n"], 400),
        ([b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n"], 400),
        ([b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n"], 400),
        ([CHUNKED_AND + b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n"], 400),
        ([CHUNKED_AND + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n"], 400),
        ([CHUNKED_AND + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"], 400),
        ([CHUNKED_AND + b"content-length: 0\r\ncontent-length: 0\r\n\r\n"], 400),
        ([CHUNKED_AND + b"host: y\r\n\r\n"], 400),
        ([CHUNKS + b"1\nx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"0x1\r\nx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"1\r\nxx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"0\r\n", *[b"x: " + b"x" * 10_000 + b"\r\n"] * 10, b"\r\n"], 431),
        ([CHUNKS + b"0\r\nx: ", *[b"x" * 1_000_000] * 10], 431),
        ([CHUNKS + b"1;x=", *[b"x" * 1_000_000] * 10], 431),
    ],
)
def test_malformed_or_oversized_request_gives_problem_document(port, pieces, status, caplog):
    assert problem(exchange_bytes(port, *pieces))[0] == status
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([], None),
        ([b"GET /api/v1/me HT"], 408),
        ([b"POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"], 408),
    ],
)
def test_slow_client_times_out(services, pieces, status, monkeypatch):
    monkeypatch.setattr(
        Connection, "arrival_seconds", 0.3 if b"POST" not in b"".join(pieces) else 9
    )
    monkeypatch.setattr("batchjob_stats_server.http.middleware.RequestLayer.body_seconds", 0.2)
    with serving(services) as port:
        answer = exchange_bytes(port, *pieces)
        assert (problem(answer)[0] if answer else None) == status


def test_trickled_bytes_do_not_extend_the_timeout(services, monkeypatch):
    monkeypatch.setattr(Connection, "arrival_seconds", 0.3)
    with (
        serving(services) as port,
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n")
        client.setblocking(False)
        start = time.monotonic()
        while not is_readable(client) and time.monotonic() < start + scaled(5):
            client.sendall(b"x: y\r\n")
            time.sleep(0.05)
        assert problem(client.recv(65536))[0] == 408


def test_pipelined_request_is_parsed_strictly(port):
    folded = b"GET /-/healthy HTTP/1.1\r\nhost: testserver\r\nx: a\r\n b\r\n\r\n"
    answer = exchange_bytes(port, b"GET /-/healthy HTTP/1.1\r\nhost: testserver\r\n\r\n" + folded)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 400") == 1


HEALTH = b"GET /-/healthy HTTP/1.1\r\nhost: testserver\r\n"
LAST = HEALTH + b"connection: close\r\n\r\n"
FORM = b"POST /api/v1/prometheus/api/v1/query HTTP/1.1\r\nhost: testserver\r\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "first",
    [
        FORM + b"content-length: 9\r\n\r\nGET / HTT",
        FORM + b"transfer-encoding: chunked\r\n\r\n9;a=b\r\nGET /\r\n\r\n\r\n0\r\na: b\r\n\r\n",
        FORM + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 9\r\n\r\nGET / HTT",
    ],
)
def test_request_after_body_is_parsed_separately(port, first, size):
    sent = HEALTH + b"\r\n" + first + LAST
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    statuses = [each[:3] for each in exchange_bytes(port, *pieces).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"401", b"200"]


def test_trailer_does_not_count_as_header(port, token_headers):
    head = b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\nconnection: close\r\n"
    identity = "".join(
        f"{name}: {value}\r\n" for name, value in token_headers("alice").items()
    ).encode()
    chunks = b"transfer-encoding: chunked\r\n\r\n0\r\n"
    assert exchange_bytes(port, head + identity + chunks + b"\r\n").startswith(b"HTTP/1.1 200")
    assert problem(exchange_bytes(port, head + chunks + identity + b"\r\n"))[0] == 401


def test_many_pipelined_requests_are_answered_in_order(port):
    paths = [b"/api/v1/prometheus/%d" % number for number in range(300)]
    asked = b"".join(b"GET " + path + b" HTTP/1.1\r\nhost: testserver\r\n\r\n" for path in paths)
    answers = exchange_bytes(port, asked + LAST).split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"404"] * 300 + [b"200"]


def test_strict_transport_security_header(tls_services, tmp_path):
    with serving(tls_services) as port:
        context = ssl.create_default_context(cafile=tmp_path / "site.pem")
        url = f"https://127.0.0.1:{port}/-/healthy"
        with urllib.request.urlopen(url, context=context, timeout=scaled(10)) as answer:
            assert answer.headers["strict-transport-security"] == "max-age=31536000"


def is_readable(client):
    return bool(select.select([client], [], [], 0)[0])


def test_client_that_does_not_read_is_disconnected(services, monkeypatch):
    """The kernel closes the connection: neither thread nor memory is held for ever."""
    monkeypatch.setattr("batchjob_stats_server.http.protocol.UNREAD_MILLISECONDS", 500)
    with serving(services) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port))
        page = b"GET /api/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
        client.sendall(page * 20)
        until(lambda: not has_server_socket(port, client.getsockname()[1]), "disconnected", 30)
        client.settimeout(scaled(5))
        with pytest.raises(ConnectionResetError):
            read_to_end(client)


def has_server_socket(port, client_port):
    """Whether the kernel still has the server's end of a connection (proc(5), /proc/net/tcp)."""
    table = Path("/proc/net/tcp").read_text()
    return re.search(rf":{port:04X} [0-9A-F]{{8}}:{client_port:04X} ", table) is not None


def read_to_end(client):
    while client.recv(65536):
        pass


def test_accepted_connection_has_tcp_nodelay():
    with (
        open_listener(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
