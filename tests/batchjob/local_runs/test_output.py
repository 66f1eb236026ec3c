"""The output of runs as it is kept."""

import gzip
import random
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from batchjob.local_runs.output import OutputLine, Reader, StreamLog, list_files, parse_record

AT = 1775300000.25


def text_of(directory) -> bytes:
    return b"".join(
        line.text + b"\n" * line.is_complete for line in Reader(directory, "stdout").read()
    )


def test_lines_and_their_times(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    log.add(b"one\ntw", AT)
    log.add(b"o\n", AT + 1)
    log.close(AT + 2)
    assert list(Reader(tmp_path, "stdout").read()) == [
        OutputLine(AT, "stdout", True, b"one"),
        OutputLine(AT + 1, "stdout", True, b"two"),
    ]
    shown = subprocess.run(["gzip", "-dc", tmp_path / "stdout.000000.gz"], capture_output=True)
    assert shown.stdout.splitlines()[0] == b"2026-04-04T10:53:20.250000Z stdout F one"


def test_what_was_flushed_can_be_read_while_more_comes(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    reader = Reader(tmp_path, "stdout")
    assert list(reader.read()) == []
    log.add(b"progress 10 %", AT)
    log.flush(AT)
    assert [(line.text, line.is_complete) for line in reader.read()] == [(b"progress 10 %", False)]
    log.add(b", 20 %\n", AT)
    log.close(AT)
    assert [(line.text, line.is_complete) for line in reader.read()] == [(b", 20 %", True)]
    assert list(reader.read()) == []


def test_a_file_cut_anywhere_is_read_as_far_as_it_goes(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    for number in range(50):
        log.add(b"line %d\n" % number, AT)
        log.flush(AT)
    log.close(AT)
    ((_, path),) = list_files(tmp_path, "stdout")
    whole, data = text_of(tmp_path), path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        assert whole.startswith(text_of(tmp_path))
    path.write_bytes(data[:100] + b"\xff" * 20 + data[120:])
    assert whole.startswith(text_of(tmp_path)[:20])


def test_beginning_and_end_stay(tmp_path):
    """Bounded: a stream of any length takes its limit, and a little."""
    noise = random.Random(1)
    log = StreamLog(tmp_path, "stdout", 800_000)
    for number in range(40_000):
        log.add(b"%d %s\n" % (number, noise.randbytes(40).hex().encode()), AT)
    log.close(AT)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_100_000
    lines = list(Reader(tmp_path, "stdout").read())
    numbers = [int(line.text.split()[0]) for line in lines]
    assert (numbers[0], numbers[-1]) == (0, 39_999)
    (gap,) = [at for at, line in enumerate(lines) if line.after_gap]
    assert numbers == [*range(gap), *range(numbers[gap], 40_000)]


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans())
def test_every_byte_comes_back(tmp_path_factory, parts, flush):
    directory = tmp_path_factory.mktemp("log")
    log = StreamLog(directory, "stdout", 1 << 20)
    for part in parts:
        log.add(part, AT)
        if flush:
            log.flush(AT)
    log.close(AT)
    assert text_of(directory) == b"".join(parts)


def test_long_lines(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    data = b"x" * 300_000 + b"\nend\n" + b"y" * 70_000
    log.add(data, AT)
    log.close(AT)
    assert text_of(tmp_path) == data


@given(st.binary())
def test_anything_is_a_line_or_none(record):
    assert parse_record(record) is None or isinstance(parse_record(record), OutputLine)


def test_other_files_are_not_looked_at(tmp_path):
    (tmp_path / "stdout.x.gz").write_bytes(b"")
    (tmp_path / "readme").write_bytes(b"")
    (tmp_path / "stdout.000000.gz").write_bytes(gzip.compress(b"no record\n"))
    assert list(Reader(tmp_path, "stdout").read()) == []
