"""Errors of commands whose server is not batchjob_stats_server, such as a proxy's login page."""

import contextlib
import socket
import threading

import pytest

from batchjob_cli.client.problems import UnreachableError
from batchjob_cli.client.remote import Server
from batchjob_cli.main import main
from tests.helpers.http_server import Response, serving

WEB_PAGE = "text/html; charset=utf-8", b"<html><body>Please log in</body></html>"
COMMANDS = [
    ["jobs"],
    ["stats"],
    ["job", "42"],
    ["job", "42", "--script"],
    ["metrics", "42"],
    ["logs", "42"],
    ["stop", "42"],
    ["delete", "42"],
]


@pytest.fixture
def serve():
    """Begin to serve one answer to every request; gives the address."""
    with contextlib.ExitStack() as stack:

        def begin(status, kind, body, **headers):
            response = Response(body, status, (("Content-Type", kind), *headers.items()))
            return stack.enter_context(serving(lambda _: response)).url

        yield begin


def error_line(capsys, command, url):
    """The one-line error of a command whose server is not ours."""
    assert main([*command, f"--server={url}"]) == 5
    out, error = capsys.readouterr()
    assert error.count("\n") == 1, error
    assert "<html>" not in out
    return error


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_web_page_is_reported(serve, capsys, command):
    error = error_line(capsys, command, serve(200, *WEB_PAGE))
    assert "expected an answer of batchjob_stats_server, found a web page at http://" in error


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_redirect_to_login_is_reported(serve, capsys, command):
    url = serve(302, "text/plain", b"", Location="https://sso.example.org/login")
    error = error_line(capsys, command, url)
    assert "found a redirect to https://sso.example.org/login at http://" in error


def test_proxy_error_is_reported(serve, capsys):
    error = error_line(capsys, ["jobs"], serve(502, WEB_PAGE[0], b"<html><h1>Oops</h1></html>"))
    assert error == "batchjob: Bad Gateway (status 502)\n"


@pytest.mark.parametrize("command", [["jobs"], ["stats"], ["metrics", "42"], ["stop", "42"]])
@pytest.mark.parametrize("body", [b"{}", b"[1, 2]", b'[{"a": 1}]', b"", b"[" * 100_000, b"\xff"])
def test_json_of_another_program_is_reported(serve, capsys, command, body):
    if body == b"" and command[0] == "metrics":
        pytest.skip("a job without samples")
    error = error_line(capsys, command, serve(200, "application/json", body))
    assert "expected an answer of batchjob_stats_server, found '" in error


@pytest.fixture
def silent_server():
    """A server that accepts connections, sends what it is given, and no more."""
    with contextlib.ExitStack() as stack:

        def begin(response=b""):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer():
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(listener.accept()[0])
                    connection.recv(1 << 16)
                    connection.sendall(response)

            threading.Thread(target=answer, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield begin


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nfirst line\n"
FOLLOWED = {"follow": "true"}


@pytest.mark.parametrize(
    ("response", "parameters"), [(b"", {}), (b"", FOLLOWED), (STREAM, {})],
    ids=["nothing at all", "nothing to follow", "half of the output"],
)  # fmt: skip
def test_silent_server_times_out(silent_server, response, parameters):
    server = Server(silent_server(response), "", seconds=0.2)
    with pytest.raises(UnreachableError, match=r"http://127.0.0.1:\d+/api/v1/: .*timed out"):
        list(server.stream("runs/42/logs", parameters))


def test_followed_job_may_be_silent(silent_server):
    lines = Server(silent_server(STREAM), "", seconds=0.2).stream("runs/42/logs", FOLLOWED)
    assert next(lines) == b"first line\n"
    reader = threading.Thread(target=lambda: list(lines), daemon=True)
    reader.start()
    reader.join(1)
    assert reader.is_alive()
