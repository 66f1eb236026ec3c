"""Over real sockets: certificates of clients, slow clients, and requests beyond all bounds."""

import datetime as dt
import json
import select
import socket
import ssl
import time
import urllib.error
import urllib.request

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from batchjob_stats_server.auth.certificates import Certificates
from batchjob_stats_server.http.protocol import Connection
from batchjob_stats_server.main import open_listener
from tests.batchjob_stats_server.authority import Authority, pem, write_pair
from tests.batchjob_stats_server.serving import serving, spoken
from tests.private_keys import write_key

VERA = (("CN", "vera"), ("OU", "viewer"))


@pytest.fixture(scope="module")
def authority():
    return Authority("the site", dt.datetime.now(dt.UTC))


@pytest.fixture
def secured(services, tmp_path, authority):
    """Services with TLS and client certificates; TLS knows no clock but the real one."""
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
def ask(secured, tmp_path):
    """The status and the document for a certificate (and headers), and what TLS said."""
    with serving(secured) as port:

        def get(pair=None, headers=None, path="/api/v1/me", version=None):
            context = ssl.create_default_context(cafile=tmp_path / "site.pem")
            context.maximum_version = version or ssl.TLSVersion.TLSv1_3
            if pair:
                context.load_cert_chain(write_pair(tmp_path, "client", *pair))
            request = urllib.request.Request(
                f"https://127.0.0.1:{port}{path}", headers=headers or {}
            )
            try:
                with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        get.port = port
        yield get


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_identifies(ask, authority, version):
    status, me = ask(authority.issue(*VERA), version=version)
    assert (status, me["user"], me["role"], me["via"]) == (200, "vera", "viewer", "certificate")
    assert ask(authority.issue(("CN", "root"), ("OU", "admin")))[1]["role"] == "admin"


def test_tokens_go_on_working(ask, token):
    headers = token("alice")
    # The token was made at the test's own time, which the real clock has passed.
    assert ask(headers=headers)[1]["via"] == "token"
    assert ask()[0] == 401


def test_two_identities_are_refused(ask, authority, token):
    status, problem = ask(authority.issue(*VERA), token("alice"))
    assert (status, problem["detail"]) == (400, "expected one identity, got several")
    assert ask(authority.issue(("CN", "vera")), token("alice"))[0] == 400


def test_what_the_application_judges_is_a_problem(ask, authority, tmp_path):
    assert "one OU" in ask(authority.issue(("CN", "vera")))[1]["detail"]
    assert "login" in ask(authority.issue(("CN", "a, b"), ("OU", "admin")))[1]["detail"]
    pair = authority.issue(*VERA)
    assert ask(pair)[0] == 200
    (tmp_path / "crl.pem").write_bytes(authority.revocation_list(pair[0]))
    status, problem = ask(pair)
    assert (status, problem["detail"]) == (401, "the certificate has been revoked")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("what", ["another CA", "expired", "a server's"])
def test_what_tls_judges_is_an_alert(ask, authority, secured, what, version):
    pair, alert = {
        "another CA": lambda: (Authority("x", authority.now).issue(*VERA), "unknown ca"),
        "expired": lambda: (authority.issue(*VERA, days=-1), "expired"),
        "a server's": lambda: (
            authority.issue(*VERA, usage=ExtendedKeyUsageOID.SERVER_AUTH), "unsupported cert",
        ),
    }[what]()  # fmt: skip
    with pytest.raises((OSError, urllib.error.URLError)) as raised:
        ask(pair, version=version)
    assert alert in str(raised.value).lower().replace("_", " ")
    name, reason = "batchjob_stats_server_refused_total", {"reason": "certificate"}
    assert secured.metrics.registry.get_sample_value(name, reason) == 1


def test_old_tls_is_refused(ask):
    with (
        pytest.warns(DeprecationWarning, match="TLSv1"),
        pytest.raises(OSError, match=r"(?i)version|protocol"),
    ):
        ask(version=ssl.TLSVersion.TLSv1_1)


@pytest.fixture(autouse=True)
def _shorter_waits(monkeypatch):
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
        ([CHUNKS + b"1\nx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"0x1\r\nx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"1\r\nxx\r\n0\r\n\r\n"], 400),
        ([CHUNKS + b"0\r\n", *[b"x: " + b"x" * 10_000 + b"\r\n"] * 10, b"\r\n"], 431),
        ([CHUNKS + b"0\r\nx: ", *[b"x" * 1_000_000] * 10], 431),
        ([CHUNKS + b"1;x=", *[b"x" * 1_000_000] * 10], 431),
    ],
)
def test_what_is_too_large_or_no_http_is_a_problem(port, pieces, status, caplog):
    assert problem(spoken(port, *pieces))[0] == status
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([], None),
        ([b"GET /api/v1/me HT"], 408),
        ([b"POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"], 408),
    ],
)
def test_a_slow_client_is_not_waited_for(services, pieces, status, monkeypatch):
    monkeypatch.setattr(
        Connection, "arrival_seconds", 0.3 if b"POST" not in b"".join(pieces) else 9
    )
    monkeypatch.setattr("batchjob_stats_server.http.middleware.RequestSizeLimit.body_seconds", 0.2)
    with serving(services) as port:
        answer = spoken(port, *pieces)
        assert (problem(answer)[0] if answer else None) == status


def test_a_byte_now_and_then_buys_no_time(services, monkeypatch):
    monkeypatch.setattr(Connection, "arrival_seconds", 0.3)
    with (
        serving(services) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n")
        client.setblocking(False)
        begun = time.monotonic()
        while not _readable(client) and time.monotonic() < begun + 5:
            client.sendall(b"x: y\r\n")
            time.sleep(0.05)
        assert problem(client.recv(65536))[0] == 408


def test_what_is_pipelined_is_read_as_strictly(port):
    folded = b"GET /-/healthy HTTP/1.1\r\nhost: testserver\r\nx: a\r\n b\r\n\r\n"
    answer = spoken(port, b"GET /-/healthy HTTP/1.1\r\nhost: testserver\r\n\r\n" + folded)
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
def test_a_body_ends_where_it_says(port, first, size):
    sent = HEALTH + b"\r\n" + first + LAST
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    statuses = [each[:3] for each in spoken(port, *pieces).split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"401", b"200"]


def test_a_trailer_is_no_header(port, token):
    head = b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\nconnection: close\r\n"
    identity = "".join(f"{name}: {value}\r\n" for name, value in token("alice").items()).encode()
    chunks = b"transfer-encoding: chunked\r\n\r\n0\r\n"
    assert spoken(port, head + identity + chunks + b"\r\n").startswith(b"HTTP/1.1 200")
    assert problem(spoken(port, head + chunks + identity + b"\r\n"))[0] == 401


def test_many_pipelined_requests_are_answered_in_order(port):
    paths = [b"/api/v1/prometheus/%d" % number for number in range(300)]
    asked = b"".join(b"GET " + path + b" HTTP/1.1\r\nhost: testserver\r\n\r\n" for path in paths)
    answers = spoken(port, asked + LAST).split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"404"] * 300 + [b"200"]


def test_tls_is_to_be_kept(secured, tmp_path):
    with serving(secured) as port:
        context = ssl.create_default_context(cafile=tmp_path / "site.pem")
        url = f"https://127.0.0.1:{port}/-/healthy"
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert answer.headers["strict-transport-security"] == "max-age=31536000"


def _readable(client):
    return bool(select.select([client], [], [], 0)[0])


def test_who_does_not_read_is_dropped(services, monkeypatch):
    """The kernel ends it: neither thread nor memory waits for ever."""
    monkeypatch.setattr("batchjob_stats_server.http.protocol.UNREAD_MILLISECONDS", 500)
    with serving(services) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port))
        page = b"GET /api/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
        client.sendall(page * 20)
        time.sleep(3)
        client.settimeout(5)
        with pytest.raises(ConnectionResetError):
            _read_all(client)


def _read_all(client):
    while client.recv(65536):
        pass


def test_short_answers_do_not_wait_for_acknowledgements():
    with (
        open_listener(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
