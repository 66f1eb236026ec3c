"""Sample files: writing and reading, also of truncated and damaged files."""

import contextlib
import errno
import gzip
import json
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.quantities.sample import (
    BY_NAME,
    BY_NAME_IN_GROUP,
    QUANTITIES,
    JobSample,
    SampleHeader,
    SampleKey,
)
from batchjob_stats_db.samples import writer as writing
from batchjob_stats_db.samples.file import Decoder, LineError, SampleFile, encode_line
from batchjob_stats_db.samples.writer import Writer, repack

T = 1_775_300_000.0
ALICE = SampleHeader("slurm", "1", "alice", "n001", 5.0)


def busy_sample(number, at=None):
    """A sample of a job that computes."""
    values = {
        SampleKey("cpu_user_seconds"): 4.987 * number,
        SampleKey("cpu_system_seconds"): 0.013 * number,
        SampleKey("memory_current_bytes"): 4096.0 * (1000 + number % 7),
        SampleKey("threads"): 8.0,
        SampleKey("io_read_bytes", ("sda",)): 65536.0 * number,
        SampleKey("energy_joules", ("host", "active")): 512.5 * number,
        SampleKey("gpu_utilization_ratio", ("0", "GPU-abc", "")): 0.5,
    }
    return JobSample(T + 5 * number if at is None else at, values)


def write_file(folder, samples):
    file = Writer(folder, ALICE, T)
    for each in samples:
        file.write(each)
    file.close()
    return file.path


def read(path):
    with SampleFile(path) as file:
        return list(file.read()), file


def test_file_name_is_a_time_and_the_header_names_the_job(tmp_path):
    path = write_file(tmp_path / "1", [busy_sample(0)])
    assert path.name == "20260404-105320.jsonl.gz"
    samples, file = read(path)
    assert (file.header, file.damage) == (ALICE, "")
    assert samples == [busy_sample(0)]


def zcat_lines(path):
    """The lines that zcat prints of a file, without an error."""
    completed = subprocess.run(["zcat", path], check=True, capture_output=True, text=True)
    assert not completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


def test_file_is_valid_gzip_and_json_while_being_written(tmp_path):
    file = Writer(tmp_path / "1", ALICE, T)
    for number in range(3):
        file.write(busy_sample(number))
        lines = zcat_lines(file.path)
        assert len(lines) == number + 1
        assert lines[-1] == {
            "time": T + 5 * number, "manager": "slurm", "jobid": "1", "user": "alice",
            "node": "n001", "interval_seconds": 5.0,
            "cpu_user_seconds": pytest.approx(4.987 * number),
            "cpu_system_seconds": 0.013 * number, "memory_current_bytes": 4096 * (1000 + number),
            "threads": 8, "io": {"sda": {"read_bytes": 65536 * number}},
            "energy_joules": {"host active": 512.5 * number},
            "gpus": {"0 GPU-abc ": {"utilization_ratio": 0.5}},
        }  # fmt: skip
    file.close()
    repack(file.path)
    assert zcat_lines(file.path)[-1] == lines[-1]


def test_samples_round_trip_before_and_after_repacking(tmp_path):
    samples = [busy_sample(n) for n in range(50)]
    path = write_file(tmp_path / "1", samples)
    found, _ = read(path)
    for expected, got in zip(samples, found, strict=True):
        assert got.at == expected.at
        assert got.values == pytest.approx(expected.values, abs=0.05)
    size_before = path.stat().st_size
    repack(path)
    repacked, _ = read(path)
    assert repacked == found
    assert path.stat().st_size < size_before
    assert path.stat().st_mode & 0o777 == 0o400


SAMPLE_KEYS = [
    SampleKey(each.name, tuple("x" for _ in each.group.labels) if each.group else ())
    for each in QUANTITIES
]
VALUES = st.dictionaries(st.sampled_from(SAMPLE_KEYS), st.integers(0, 1 << 40))


@given(st.lists(st.tuples(st.integers(0, 1 << 40), VALUES)))
def test_decoder_follows_any_sequence_of_values(states):
    decoder, before = Decoder(), {}
    for ticks, values in states:
        text = encode_line(ALICE, JobSample(ticks / 100, values))
        assert decoder.advance(text) == ticks / 100
        assert decoder.values == values
        assert decoder.changed == {
            name for name in before | values if before.get(name) != values.get(name)
        }
        before = values


HEAD = '"manager":"m","jobid":"1","user":"u","node":"n","interval_seconds":5'


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_line_is_decoded_or_rejected(text):
    with contextlib.suppress(LineError):
        Decoder().advance(text)


@pytest.mark.parametrize(
    "text",
    ['{"time":1}', '{"time":true,HEAD}', '{"time":1,HEAD,"threads":true}', "[]",
     '{"time":1e300,HEAD}', '{"time":NaN,HEAD}', '{"time":1,HEAD,"gpus":{"0":{"share_ratio":1}}}',
     '{"time":1,HEAD,"io":7}', '{"time":1,HEAD,"threads":"8"}',
     '{"time":1,HEAD,"threads":Infinity}', '{"time":1,HEAD,"threads":18446744073709551616}'],
)  # fmt: skip
def test_invalid_lines_are_rejected(text):
    with pytest.raises(LineError):
        Decoder().advance(text.replace("HEAD", HEAD).encode())


def test_names_of_a_later_version_are_ignored():
    decoder = Decoder()
    text = '{"time":1,HEAD,"later":5,"threads":7,"io":{"sda":{"later":1,"reads":2}},"new":{"a":1}}'
    decoder.advance(text.replace("HEAD", HEAD).encode())
    assert decoder.values == {SampleKey("threads"): 7, SampleKey("io_reads", ("sda",)): 2}


def test_quantity_names_are_unique():
    assert len(BY_NAME) == len(QUANTITIES)
    assert len(BY_NAME_IN_GROUP) == sum(each.group is not None for each in QUANTITIES)


def test_file_being_written_is_read_up_to_its_last_sample(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy_sample(0))
    with SampleFile(file.path) as reader:
        for number in range(1, 30):
            file.write(busy_sample(number))
            assert [each.at for each in reader.read()][-1:] == [T + 5 * number]
            assert not list(reader.read())
            assert reader.is_being_written
        file.close()
        assert not list(reader.read())
        assert not reader.is_being_written
        repack(file.path)
        assert reader.is_replaced
    with SampleFile(file.path) as reader:
        assert len(list(reader.read())) == 30
        assert reader.is_complete


def test_truncated_file_is_read_up_to_the_cut(tmp_path):
    path = write_file(tmp_path / "1", [busy_sample(n) for n in range(20)])
    content, (samples, _) = path.read_bytes(), read(path)
    counts = []
    for length in range(len(content)):
        path.write_bytes(content[:length])
        found, file = read(path)
        assert found == samples[: len(found)]
        assert not file.damage
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(samples)  # only the checksum is missing


@given(st.integers(0, 400), st.binary(min_size=1, max_size=30))
def test_inserted_garbage_is_reported_as_damage(tmp_path_factory, at, garbage):
    path = write_file(tmp_path_factory.mktemp("job"), [busy_sample(n) for n in range(20)])
    content, (samples, _) = path.read_bytes(), read(path)
    path.write_bytes(content[:at] + garbage + content[at:])
    found, file = read(path)
    assert found[: len(samples)] == samples[: len(found)] or file.damage


def test_samples_before_garbage_are_read(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    for number in range(20):
        file.write(busy_sample(number))
    so_far = file.path.read_bytes()
    file.close()
    file.path.write_bytes(so_far + random.Random(1).randbytes(1000))
    found, reader = read(file.path)
    assert len(found) == 20
    assert "not gzip after this point" in reader.damage


def test_reason_of_damage(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    for content, reason in (
        (b"hello", "not gzip"),
        (gzip.compress(b"hello\n"), "not JSON"),
        (gzip.compress(b'{"time":2}\n'), "expected 'manager'"),
        (gzip.compress(b"x" * (1 << 21)), "a line of more than"),
    ):
        path.write_bytes(content)
        found, file = read(path)
        assert (found, reason in file.damage) == ([], True), file.damage


def test_damaged_or_unfinished_file_is_not_repacked(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy_sample(0))
    before = file.path.read_bytes()
    repack(file.path)
    assert file.path.read_bytes() == before
    file.close()
    before = file.path.read_bytes() + b"garbage"
    file.path.write_bytes(before)
    repack(file.path)
    assert file.path.read_bytes() == before


def test_writers_started_in_the_same_second_have_separate_files(tmp_path):
    one, two = Writer(tmp_path, ALICE, T), Writer(tmp_path, ALICE, T)
    assert one.path != two.path
    one.close()
    two.close()
    assert not list(tmp_path.iterdir())  # without a sample there is no file


def test_full_disk_does_not_damage_earlier_samples(tmp_path, monkeypatch):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy_sample(0))
    real, calls = writing.os.pwrite, []

    def pwrite(descriptor, data, at):
        """Write half of the first data; later writes succeed."""
        calls.append(data)
        return real(descriptor, data[: len(data) // 2] if len(calls) == 1 else data, at)

    monkeypatch.setattr(writing.os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left") as failure:
        file.write(busy_sample(1))
    assert failure.value.errno == errno.ENOSPC
    monkeypatch.undo()
    file.close()
    assert read(file.path)[0] == [busy_sample(0)]
    assert len(zcat_lines(file.path)) == 1


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda each: each.name)
def test_every_name_is_documented(quantity):
    page = (Path(__file__).parents[3] / "docs" / "samples.md").read_text()
    group = quantity.group and quantity.group.name
    name = f"{group}.<of>.{quantity.name_in_group}".rstrip(".") if group else quantity.name
    assert f"| `{name}` |" in page
