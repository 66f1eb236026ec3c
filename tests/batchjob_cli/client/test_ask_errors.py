"""Errors of commands are one line, with an exit status by kind."""

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_cli import job, jobs
from batchjob_cli.main import main


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (jobs, ["--limit", "0"], "--limit: expected a whole number of at least 1"),
        (jobs, ["--state", "done"], "expected one of "),
        (jobs, ["--since", "some day"], "--since"),
        (jobs, ["--limit", "-5"], "--limit: expected a whole number of at least 1, got '-5'"),
        (jobs, ["--sort", "zz"], "sort: unknown key 'zz'; expected a name such as start_time, el"),
        (
            jobs,
            ["--sort", "energy"],
            "'energy'; did you mean usage_energy_joules or energy_used_joules?",
        ),
        (jobs, ["--server", "example.org"], "expected http://HOST or https://HOST"),
        (jobs, ["--server", "http://127.0.0.1:1"], "http://127.0.0.1:1/api/v1/: "),
        (jobs, ["--server", "http://127.0.0.1:99999"], "expected http://HOST or https://HOST"),
        (jobs, ["--server", "http://me:secret@a"], "--server: expected no user and password"),
        (
            jobs,
            ["--server", "https://a", "--ca-file", "/etc/passwd"],
            "/etc/passwd: no certificate or crl found",
        ),
        (jobs, ["--token-file", "/nonexistent", "--server", "http://127.0.0.1:1"], "--token-file"),
        (job, ["no-such-job"], "job no-such-job does not exist"),
    ],
)
def test_invalid_input_is_one_line_error(data, command, arguments, message):
    with pytest.raises(SettingsError) as error:
        command.run(["--data", data, *arguments])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["job", "two\nlines"], 3, "job two\\nlines does not exist, or is not yours to see"),
        (["jobs", "--name", "\udcff"], 2, "\\udcff: expected UTF-8"),
    ],
)
def test_error_with_control_characters_is_one_line(data, capsys, arguments, status, message):
    assert main([*arguments, "--data", data]) == status
    assert capsys.readouterr().err == f"batchjob: {message}\n"


def test_invalid_client_certificate(data, tmp_path, capsys):
    file = tmp_path / "client.pem"
    file.write_text("no certificate")
    file.chmod(0o600)
    assert main(["jobs", "--data", data, "--server", "https://a", "--cert", str(file)]) == 2
    assert capsys.readouterr().err == f"batchjob: --cert: {file}: expected PEM\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["jobs", "--stat", "failed"], 2, "--state"),
        (
            ["jobs", "--since", "foo"],
            2,
            "expected a time such as 22:30 or 2026-04-04T22:30, yesterday, or",
        ),
        (["jobs", "--since", "2026-13-45"], 2, "or how long ago such as 2d, got '2026-13-45'"),
        (["jbos"], 2, "did you mean jobs?"),
        (["unheard-of"], 2, "expected one of up, run, jobs"),
        (["job", "no-such-job"], 3, "job no-such-job does not exist"),
        (["job", "align"], 3, "'align' matches 2 runs: "),
        (["metrics", "align"], 3, "'align' matches 2 runs: "),
        (["metrics", "no-such-job"], 3, "no-such-job"),
        (["job", ""], 2, "JOB: expected an id or a name"),
        (["logs", "no-such-run"], 3, "no run has the id or name"),
        (["jobs", "--sort", "-bytes"], 2, "sort: unknown key '-bytes'"),
        (
            ["jobs", "--server", "https://{address}"],
            5,
            "the server does not speak TLS; is it http://",
        ),
        (
            ["jobs", "--server", "http://{address}"],
            4,
            "$BATCHJOB_TOKEN gives a token, --cert a certificate",
        ),
        (
            ["job", "no-such", "--server", "http://{address}", "--token-file", "{token}"],
            3,
            "no-such",
        ),
        (
            ["job", "align", "--server", "http://{address}", "--token-file", "{token}"],
            3,
            "'align' matches several jobs: ",
        ),
        (["jobs", "--server", "http://127.0.0.1:1"], 5, "Connection refused"),
    ],
)
def test_exit_status_by_kind_of_error(
    data, server, capsys, monkeypatch, arguments, status, message
):
    monkeypatch.setenv("BATCHJOB_DATA", data)
    url, token_file = server
    given = [each.format(address=url.partition("//")[2], token=token_file) for each in arguments]
    assert main(given) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("batchjob: ")
    assert error.count("\n") == 1
    assert not any(word in error for word in ("Errno", "_ssl.c", "Input should", "pattern"))
