"""Sample files: what is written is read again, also of a file that was cut or damaged."""

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

from batchjob.quantities.index import BY_NAME, BY_NAME_IN_GROUP, QUANTITIES
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.samples import writer as writing
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.format import Decoder, LineError, encode_line
from batchjob_stats_db.samples.writer import Writer, repack

T = 1_775_300_000.0
ALICE = SampleHeader("slurm", "1", "alice", "n001", 5.0)


def busy(number, at=None):
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


def written(folder, samples, who=ALICE):
    file = Writer(folder, who, T)
    for each in samples:
        file.write(each)
    file.close()
    return file.path


def read(path):
    with SampleFile(path) as file:
        return list(file.read()), file


def test_a_file_is_named_by_its_time_and_tells_whose_it_is(tmp_path):
    path = written(tmp_path / "1", [busy(0)])
    assert path.name == "20260404-105320.jsonl.gz"
    samples, file = read(path)
    assert (file.header, file.damage) == (ALICE, "")
    assert samples == [busy(0)]


def unpacked(path):
    """What zcat prints of a file, to its end and without a complaint."""
    done = subprocess.run(["zcat", path], check=True, capture_output=True, text=True)
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_gzip_and_jq_read_it_at_every_moment(tmp_path):
    file = Writer(tmp_path / "1", ALICE, T)
    for number in range(3):
        file.write(busy(number))
        lines = unpacked(file.path)
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
    assert unpacked(file.path)[-1] == lines[-1]


def test_the_same_numbers_come_back(tmp_path):
    samples = [busy(n) for n in range(50)]
    path = written(tmp_path / "1", samples)
    found, _ = read(path)
    for expected, got in zip(samples, found, strict=True):
        assert got.at == expected.at
        assert got.values == pytest.approx(expected.values, abs=0.05)
    before = path.stat().st_size
    repack(path)
    again, _ = read(path)
    assert again == found
    assert path.stat().st_size < before
    assert path.stat().st_mode & 0o777 == 0o400


NAMES = [
    SampleKey(each.name, tuple("x" for _ in each.group.labels) if each.group else ())
    for each in QUANTITIES
]
VALUES = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 40))


@given(st.lists(st.tuples(st.integers(0, 1 << 40), VALUES)))
def test_whatever_comes_goes_or_begins_anew(states):
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
def test_a_line_is_read_or_refused(text):
    with contextlib.suppress(LineError):
        Decoder().advance(text)


@pytest.mark.parametrize(
    "text",
    ['{"time":1}', '{"time":true,HEAD}', '{"time":1,HEAD,"threads":true}', "[]",
     '{"time":1e300,HEAD}', '{"time":NaN,HEAD}', '{"time":1,HEAD,"gpus":{"0":{"share_ratio":1}}}',
     '{"time":1,HEAD,"io":7}', '{"time":1,HEAD,"threads":"8"}',
     '{"time":1,HEAD,"threads":Infinity}', '{"time":1,HEAD,"threads":18446744073709551616}'],
)  # fmt: skip
def test_numbers_that_are_none(text):
    with pytest.raises(LineError):
        Decoder().advance(text.replace("HEAD", HEAD).encode())


def test_names_of_a_later_version_are_passed_over():
    decoder = Decoder()
    text = '{"time":1,HEAD,"later":5,"threads":7,"io":{"sda":{"later":1,"reads":2}},"new":{"a":1}}'
    decoder.advance(text.replace("HEAD", HEAD).encode())
    assert decoder.values == {SampleKey("threads"): 7, SampleKey("io_reads", ("sda",)): 2}


def test_each_name_means_one_thing():
    assert len(BY_NAME) == len(QUANTITIES)
    assert len(BY_NAME_IN_GROUP) == sum(each.group is not None for each in QUANTITIES)


def test_a_file_being_written_is_read_to_its_last_sample(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy(0))
    with SampleFile(file.path) as reader:
        for number in range(1, 30):
            file.write(busy(number))
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


def test_a_file_cut_anywhere_gives_what_is_before(tmp_path):
    path = written(tmp_path / "1", [busy(n) for n in range(20)])
    whole, (samples, _) = path.read_bytes(), read(path)
    counts = []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found, file = read(path)
        assert found == samples[: len(found)]
        assert not file.damage
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(samples)  # only the checksum was missing


@given(st.integers(0, 400), st.binary(min_size=1, max_size=30))
def test_a_file_with_garbage_gives_what_is_before_and_says_so(tmp_path_factory, at, garbage):
    path = written(tmp_path_factory.mktemp("job"), [busy(n) for n in range(20)])
    whole, (samples, _) = path.read_bytes(), read(path)
    path.write_bytes(whole[:at] + garbage + whole[at:])
    found, file = read(path)
    assert found[: len(samples)] == samples[: len(found)] or file.damage


def test_garbage_costs_nothing_of_what_is_before(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    for number in range(20):
        file.write(busy(number))
    so_far = file.path.read_bytes()
    file.close()
    file.path.write_bytes(so_far + random.Random(1).randbytes(1000))
    found, reader = read(file.path)
    assert len(found) == 20
    assert "not gzip after this point" in reader.damage


def test_garbage_is_named(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    for content, said in (
        (b"hello", "not gzip"),
        (gzip.compress(b"hello\n"), "not JSON"),
        (gzip.compress(b'{"time":2}\n'), "expected 'manager'"),
        (gzip.compress(b"x" * (1 << 21)), "a line of more than"),
    ):
        path.write_bytes(content)
        found, file = read(path)
        assert (found, said in file.damage) == ([], True), file.damage


def test_a_damaged_file_or_one_being_written_is_not_packed_anew(tmp_path):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy(0))
    before = file.path.read_bytes()
    repack(file.path)
    assert file.path.read_bytes() == before
    file.close()
    before = file.path.read_bytes() + b"garbage"
    file.path.write_bytes(before)
    repack(file.path)
    assert file.path.read_bytes() == before


def test_two_writers_of_one_second_have_a_file_each(tmp_path):
    one, two = Writer(tmp_path, ALICE, T), Writer(tmp_path, ALICE, T)
    assert one.path != two.path
    one.close()
    two.close()
    assert not list(tmp_path.iterdir())  # without a sample there is no file


def test_a_full_disk_takes_nothing_of_what_was_there(tmp_path, monkeypatch):
    file = Writer(tmp_path, ALICE, T)
    file.write(busy(0))
    real, calls = writing.os.pwrite, []

    def pwrite(descriptor, data, at):
        """Half of the first data; what lay there before fits again."""
        calls.append(data)
        return real(descriptor, data[: len(data) // 2] if len(calls) == 1 else data, at)

    monkeypatch.setattr(writing.os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space left") as failure:
        file.write(busy(1))
    assert failure.value.errno == errno.ENOSPC
    monkeypatch.undo()
    file.close()
    assert read(file.path)[0] == [busy(0)]
    assert len(unpacked(file.path)) == 1


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda each: each.name)
def test_every_name_is_documented(quantity):
    page = (Path(__file__).parents[3] / "docs" / "samples.md").read_text()
    group = quantity.group and quantity.group.name
    name = f"{group}.<of>.{quantity.name_in_group}".rstrip(".") if group else quantity.name
    assert f"| `{name}` |" in page
