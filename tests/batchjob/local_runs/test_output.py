"""Stored output of runs."""

import gzip
import os
import random
import subprocess
import time
import tracemalloc
import zlib
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.local_runs.output import (
    OutputLine,
    Reader,
    StreamLog,
    list_files,
    merge_streams,
    parse_record,
)
from tests.helpers.waiting import scaled

WRITE_TIME = 1775300000.25


def stored_text(directory) -> bytes:
    return b"".join(
        line.text + b"\n" * line.is_complete for line in Reader(directory, "stdout").read()
    )


def test_lines_are_stored_with_times(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    log.add(b"one\ntw", WRITE_TIME)
    log.add(b"o\n", WRITE_TIME + 1)
    log.close(WRITE_TIME + 2)
    assert list(Reader(tmp_path, "stdout").read()) == [
        OutputLine(WRITE_TIME, "stdout", True, b"one"),
        OutputLine(WRITE_TIME + 1, "stdout", True, b"two"),
    ]
    unpacked = subprocess.run(["gzip", "-dc", tmp_path / "stdout.000000.gz"], capture_output=True)
    assert unpacked.stdout.splitlines()[0] == b"2026-04-04T10:53:20.250000Z stdout F one"


def test_flushed_output_can_be_read_while_log_is_open(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    reader = Reader(tmp_path, "stdout")
    assert list(reader.read()) == []
    log.add(b"progress 10 %", WRITE_TIME)
    log.flush(WRITE_TIME)
    assert [(line.text, line.is_complete) for line in reader.read()] == [(b"progress 10 %", False)]
    log.add(b", 20 %\n", WRITE_TIME)
    log.close(WRITE_TIME)
    assert [(line.text, line.is_complete) for line in reader.read()] == [(b", 20 %", True)]
    assert list(reader.read()) == []


def test_truncated_or_damaged_file_is_read_up_to_the_damage(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    for number in range(50):
        log.add(b"line %d\n" % number, WRITE_TIME)
        log.flush(WRITE_TIME)
    log.close(WRITE_TIME)
    ((_, path),) = list_files(tmp_path, "stdout")
    complete_text, data = stored_text(tmp_path), path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        assert complete_text.startswith(stored_text(tmp_path))
    path.write_bytes(data[:100] + b"\xff" * 20 + data[120:])
    assert complete_text.startswith(stored_text(tmp_path)[:20])


def test_beginning_and_end_are_kept_within_size_limit(tmp_path):
    """A stream of any length takes little more space than its limit."""
    noise = random.Random(1)
    log = StreamLog(tmp_path, "stdout", 800_000)
    for number in range(40_000):
        log.add(b"%d %s\n" % (number, noise.randbytes(40).hex().encode()), WRITE_TIME)
    log.close(WRITE_TIME)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_100_000
    lines = list(Reader(tmp_path, "stdout").read())
    numbers = [int(line.text.split()[0]) for line in lines]
    assert (numbers[0], numbers[-1]) == (0, 39_999)
    (gap,) = [at for at, line in enumerate(lines) if line.after_gap]
    assert numbers == [*range(gap), *range(numbers[gap], 40_000)]


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans())
def test_output_round_trip(tmp_path_factory, parts, flush):
    directory = tmp_path_factory.mktemp("log")
    log = StreamLog(directory, "stdout", 1 << 20)
    for part in parts:
        log.add(part, WRITE_TIME)
        if flush:
            log.flush(WRITE_TIME)
    log.close(WRITE_TIME)
    assert stored_text(directory) == b"".join(parts)


def test_long_lines_round_trip(tmp_path):
    log = StreamLog(tmp_path, "stdout", 1 << 20)
    data = b"x" * 300_000 + b"\nend\n" + b"y" * 70_000
    log.add(data, WRITE_TIME)
    log.close(WRITE_TIME)
    assert stored_text(tmp_path) == data


@given(st.binary())
def test_parse_record_accepts_any_bytes(record):
    assert parse_record(record) is None or isinstance(parse_record(record), OutputLine)


def test_other_files_are_ignored(tmp_path):
    (tmp_path / "stdout.x.gz").write_bytes(b"")
    (tmp_path / "readme").write_bytes(b"")
    (tmp_path / "stdout.000000.gz").write_bytes(gzip.compress(b"no record\n"))
    assert list(Reader(tmp_path, "stdout").read()) == []


def last_lines(directory, count, stream="stdout"):
    reader = Reader(directory, stream)
    reader.seek_to_last(count)
    return [line.text for line in deque(reader.read(), maxlen=count)]


@pytest.mark.parametrize("count", [0, 1, 10, 1000, 30_000])
def test_last_lines_of_a_long_log_are_found(tmp_path, count):
    noise = random.Random(1)
    log = StreamLog(tmp_path, "stdout", 4 << 20)
    texts = [b"%d %s" % (number, noise.randbytes(200).hex().encode()) for number in range(20_000)]
    for number, text in enumerate(texts):
        log.add(text + b"\n", WRITE_TIME)
        if number % 500 == 0:
            log.flush(WRITE_TIME)
    log.close(WRITE_TIME)
    assert len(list_files(tmp_path, "stdout")) > 2
    kept = [line.text for line in Reader(tmp_path, "stdout").read()]
    assert last_lines(tmp_path, count) == kept[len(kept) - min(count, len(kept)) :]


@pytest.mark.parametrize("until", [-1, 0, 17, 9_000, 19_998, 30_000])
def test_last_lines_up_to_a_time_are_found_without_reading_the_log(tmp_path, until):
    noise = random.Random(1)
    log = StreamLog(tmp_path, "stdout", 64 << 20)
    for number in range(20_000):
        log.add(b"%d %s\n" % (number, noise.randbytes(200).hex().encode()), number)
        if number % 100 == 0:
            log.flush(number)
    log.close(20_000)
    reader = Reader(tmp_path, "stdout")
    reader.seek_to_last(10, until)
    read = [int(line.text.split()[0]) for line in merge_streams([reader], None, until)]
    last = min(until, 19_999)
    assert read[-10:] == list(range(max(0, last - 9), last + 1))
    assert len(read) < 1000


def test_reading_ends_after_a_time(tmp_path):
    (tmp_path / "stdout.000000.gz").write_bytes(packed(b"2026-04-04T12:53:20Z stdout F \n", 20))
    reader = Reader(tmp_path, "stdout")
    reader.limit_time(-1)
    with pytest.raises(TimeoutError, match="reading took too long"):
        list(reader.read())
    with pytest.raises(TimeoutError, match="reading took too long"):
        reader.seek_to_last(10)


def sparse_file(path, size):
    """A file of 15 bytes and a hole, which takes a block of the disk and seconds to read."""
    path.write_bytes(packed(b"2026-04-04T12:53:20Z stderr F \n", 1)[:15])
    os.truncate(path, size)


def test_search_for_last_lines_ends_after_a_time_within_a_file(tmp_path):
    sparse_file(tmp_path / "stderr.000000.gz", 4 << 30)
    reader = Reader(tmp_path, "stderr")
    reader.limit_time(0.001)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="reading took too long"):
        reader.seek_to_last(10)
    assert time.monotonic() - began < scaled(1)


def test_search_for_last_lines_counts_what_it_reads_of_all_files(tmp_path):
    for number in range(20):
        sparse_file(tmp_path / f"stderr.{number:06}.gz", 4 << 30)
    began = time.monotonic()
    assert last_lines(tmp_path, 10, "stderr") == []
    assert time.monotonic() - began < scaled(5)


@given(st.lists(st.tuples(st.binary(max_size=100), st.booleans()), max_size=30), st.integers(0, 9))
def test_last_lines_are_those_of_the_whole(tmp_path_factory, parts, count):
    directory = tmp_path_factory.mktemp("log")
    log = StreamLog(directory, "stdout", 1 << 20)
    for part, flush in parts:
        log.add(part, WRITE_TIME)
        if flush:
            log.flush(WRITE_TIME)
    log.close(WRITE_TIME)
    kept = [line.text for line in Reader(directory, "stdout").read()]
    assert last_lines(directory, count) == kept[len(kept) - min(count, len(kept)) :]


def packed(text: bytes, times: int) -> bytes:
    """A gzip stream of 1 MiB of text `times` times."""
    compressor = zlib.compressobj(9, wbits=31)
    block = text * ((1 << 20) // len(text))
    return b"".join(compressor.compress(block) for _ in range(times)) + compressor.flush()


HOSTILE = {
    "blank lines": packed(b"\n", 500),
    "one line": packed(b"x", 500),
    "records without text": packed(b"2026-04-04T12:53:20Z stdout F \n", 200),
    "parts of an endless line": packed(b"2026-04-04T12:53:20Z stdout P \n", 200),
    "seeming flushes": b"\x1f\x8b" + b"\0\0\xff\xff" * 1_000_000,
    "zeros": bytes(20_000_000),
    "half a stream": packed(b"2026-04-04T12:53:20Z stdout F line\n", 200)[:100_000],
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_last_lines_cost_little_whatever_the_file_holds(tmp_path, content):
    (tmp_path / "stdout.000000.gz").write_bytes(content)
    tracemalloc.start()
    started = time.process_time()
    try:
        last_lines(tmp_path, 10)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 20  # a minute and more without limits


def test_lines_that_are_no_records_end_the_file(tmp_path):
    (tmp_path / "stdout.000000.gz").write_bytes(packed(b"\n", 50))
    (tmp_path / "stdout.000001.gz").write_bytes(
        gzip.compress(b"2026-04-04T12:53:20Z stdout F end\n")
    )
    assert [line.text for line in Reader(tmp_path, "stdout").read()] == [b"end"]


def test_number_of_files_that_are_read_is_bounded(tmp_path):
    for number in range(1500):
        (tmp_path / f"stdout.{number:06}.gz").touch()
    (tmp_path / f"stdout.{'9' * 200}.gz").touch()
    assert len(list_files(tmp_path, "stdout")) == 1000
