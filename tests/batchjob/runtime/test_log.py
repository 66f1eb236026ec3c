"""Log events are one printable line each, whatever their text, and can be parsed back."""

import json
import logging
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime import log as logs
from batchjob.runtime.settings import LogOptions

log = logging.getLogger("batchjob.test")


@pytest.fixture
def write_log_line(capsys):
    def write(text, format):
        logs.set_up(LogOptions(format=format))
        log.warning("%s", text)
        return capsys.readouterr().err.removesuffix("\n")

    return write


def logged_message(line, format):
    """The message that a parser of the format reads."""
    if format == "json":
        return json.loads(line)["msg"]
    quoted = line.partition(" msg=")[2]
    return json.loads(quoted) if quoted.startswith('"') else quoted


@pytest.mark.parametrize("format", ["logfmt", "json"])
@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a\nb", r"\n"),
        ("a\x1b[2Jb", r"\u001b[2J"),
        ("a\x7fb", r"\u007f"),
        ("a\x85b", r"\u0085"),
        ("a\u2028b", r"\u2028"),
        ("a\u202eb", r"\u202e"),
        ("a\u2066b", r"\u2066"),
        ("a\ufeffb", r"\ufeff"),
        ("a\udc80b", r"\udc80"),
        ("a\U000e0041b", r"\udb40\udc41"),
    ],
)
def test_control_characters_are_escaped(write_log_line, format, text, escaped):
    line = write_log_line(text, format)
    assert f"a{escaped}b" in line
    assert line.isprintable()
    assert logged_message(line, format) == text


@pytest.mark.parametrize("format", ["logfmt", "json"])
def test_non_ascii_letters_are_not_escaped(write_log_line, format):
    line = write_log_line("Grüße, 東京 €", format)
    assert "Grüße, 東京 €" in line


@pytest.mark.parametrize("text", ["plain", "", "two words", 'a"b', "a=b", "back\\slash"])
def test_logfmt_quoting(write_log_line, text):
    line = write_log_line(text, "logfmt")
    assert logged_message(line, "logfmt") == text
    if text == "plain":
        assert line.endswith(" msg=plain")


@pytest.mark.parametrize("format", ["logfmt", "json"])
@given(text=st.text())
def test_any_text_is_one_printable_line_and_round_trips(format, text):
    formatter = logs.LineFormatter(format)
    record = logging.LogRecord("batchjob", logging.INFO, "", 0, "%s", (text,), None)
    line = formatter.format(record)
    assert line.isprintable()
    assert logged_message(line, format) == text


def test_traceback_is_one_line(write_log_line, capsys):
    logs.set_up(LogOptions(format="logfmt"))
    try:
        raise ValueError("two\nlines\u2028three")
    except ValueError:
        log.exception("broken")
    line = capsys.readouterr().err.removesuffix("\n")
    assert line.isprintable()
    (error,) = [word for word in shlex.split(line) if word.startswith("error=")]
    assert "ValueError: two" in error


def test_each_kind_of_failure_is_logged_once_until_it_is_over(caplog):
    once = logs.LogOnce(logging.getLogger("test"))
    for error in ("no socket", "HTTP 422 at 17:01", "HTTP 422 at 17:02", "no socket"):
        once.failure("slurm_rest", "c1: %s: %s", "slurm_rest", error)
    assert caplog.messages == ["c1: slurm_rest: no socket", "c1: slurm_rest: HTTP 422 at 17:01"]
    once.forget("slurm_rest")
    once.failure("slurm_rest", "c1: %s: %s", "slurm_rest", "no socket")
    assert len(caplog.messages) == 3
