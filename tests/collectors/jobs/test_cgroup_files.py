"""Parsers of the kernel's cgroup files, on valid and arbitrary content."""

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.quantities.reading import CgroupReading
from collectors.host import read_path
from collectors.jobs.cgroups import v1, v2
from collectors.jobs.cgroups.formats import (
    DeviceNames,
    RawValues,
    count_list,
    flat_keyed,
    single,
)
from collectors.jobs.cgroups.reader import ReadErrors

NAMES = DeviceNames("/nonexistent", ReadErrors())


@pytest.mark.parametrize(
    ("text", "count"), [(b"\n", 0), (b"0\n", 1), (b"0-3,8,10-11\n", 7), (b"5\n", 1)]
)
def test_cpu_list_is_counted(text, count):
    assert count_list(text) == count


@given(st.sets(st.integers(0, 300), min_size=1))
def test_arbitrary_cpu_list_is_counted(cpus):
    assert count_list(",".join(map(str, sorted(cpus))).encode() + b"\n") == len(cpus)


def test_flat_keyed_file_may_change_its_order():
    parse = flat_keyed({"b": ("b", 1), "c": ("c", 10)})
    assert parse(b"a 1\nb 2\nc 30\n") == {"b": 2, "c": 3.0}
    assert parse(b"c 50\nb 7\n") == {"b": 7, "c": 5.0}
    assert parse(b"b 8\n") == {"b": 8}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2**63)))
def test_flat_keyed_returns_the_keys_present(pairs):
    parse = flat_keyed({"a": ("a", 1), "d": ("d", 1)})
    text = "".join(f"{key} {value}\n" for key, value in pairs.items()).encode()
    assert parse(text) == {key: value for key, value in pairs.items() if key in "ad"}


PARSERS = [
    flat_keyed({"a": ("a", 1)}),
    single("x"),
    count_list,
    lambda data: v2.parse_io_stat(data, NAMES),
    *(source.parse for source in v2.sources(frozenset({"cpu", "memory", "io", "pressure",
                                                            "processes"}), NAMES)),
    *(source.parse for files in v1.sources(frozenset({"cpu", "memory", "io", "processes"}),
                                                NAMES).values() for source in files),
]  # fmt: skip


@given(st.binary(max_size=200))
def test_garbage_raises_only_value_or_lookup_errors(data):
    for parse in PARSERS:
        with contextlib.suppress(ValueError, LookupError):
            parse(data)


def test_max_and_huge_limits_are_unlimited():
    assert single("x")(b"max\n") == {}
    assert single("x")(b"4096\n") == {"x": 4096}
    unlimited = RawValues(memory_hierarchical_limit=9223372036854771712)
    assert v1.combine(unlimited, 0.0) == {}


def test_io_stat_skips_incomplete_devices():
    data = b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:0 rbytes=9 wbytes=9\n259:0\n"
    assert v2.parse_io_stat(data, NAMES) == {"8:0": (1, 2, 3, 4)}


GOOD_ROW = b"8:16 rbytes=7 wbytes=9 rios=1 wios=1 dbytes=0 dios=0\n"


@pytest.mark.parametrize(
    ("row", "device", "malformed"),
    [
        (b"7:7 7:6 7:5 8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n", (1, 2, 3, 4), 0),
        (b"(unknown) rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n", None, 1),
        (b"8:0 rbytes=1 wbytes=2 rios=-3 wios=4\n", None, 1),
        (b"8:0 rbytes=1 wbytes=2\n", None, 1),
        (b"8:0 rbytes=1 wbytes=2 rios=3 wios=4 half\n", None, 1),
        (b"8:0 \n", None, 0),
        (b"\xff\xfe=1\n", None, 0),
        (b"rbytes=1\n", None, 0),
    ],
)
def test_odd_row_of_io_stat_loses_its_own_device_alone(row, device, malformed):
    errors = ReadErrors()
    found = v2.parse_io_stat(row + GOOD_ROW, DeviceNames("/nonexistent", errors))
    assert found.pop("8:16") == (7, 9, 1, 1)
    assert found == ({"8:0": device} if device else {})
    assert errors.counts()["malformed"] == malformed


@pytest.mark.parametrize("row", [b"(unknown) Read 1\n", b"8:0 Read x\n", b"\xff:0 Read 1\n"])
def test_odd_row_of_blkio_loses_its_own_device_alone(row):
    errors = ReadErrors()
    blkio = v1.sources({"io"}, DeviceNames("/nonexistent", errors))["blkio"][0]
    (found,) = blkio.parse(row + b"8:16 Read 7\n8:16 Write 9\nTotal 16\n").values()
    assert found == {"8:16": (7, 9)}
    assert errors.counts()["malformed"] == 1


def test_stacked_devices_are_omitted(tmp_path):
    for number, name, slaves in (("8:0", "sda", []), ("253:0", "dm-0", ["sda"])):
        device = tmp_path / "devices" / name
        (device / "slaves").mkdir(parents=True)
        for slave in slaves:
            (device / "slaves" / slave).touch()
        (tmp_path / "dev/block").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev/block" / number).symlink_to(device)
    names = DeviceNames(str(tmp_path), ReadErrors())
    assert [names.name(number) for number in ("8:0", "253:0", "7:1", "9:9")] == [
        "sda", None, None, "9:9",
    ]  # fmt: skip


def test_v1_user_time_is_exact_and_never_falls():
    first = v1.combine(RawValues(cpu_seconds=1.0049, cpu_system_ticks=10), 0.0)
    assert first["cpu_user_seconds"] == pytest.approx(0.9049)
    assert first["cpu_system_seconds"] == 0.10
    more = RawValues(cpu_seconds=1.0051, cpu_system_ticks=11)
    later = v1.combine(more, first["cpu_user_seconds"])
    assert later["cpu_user_seconds"] == first["cpu_user_seconds"]


def test_combined_fields_are_fields_of_a_reading():
    numbers = dict.fromkeys(RawValues._fields, 1) | {"io_bytes": {}, "io_operations": {}}
    assert v1.combine(RawValues(**numbers), 0.0).keys() < set(CgroupReading._fields)


def test_v1_cpu_time_needs_both_files():
    assert v1.combine(RawValues(cpu_seconds=1.0), 0.0) == {}
    assert v1.combine(RawValues(cpu_system_ticks=10), 0.0) == {}


def test_v1_blkio():
    files = v1.sources(frozenset({"io"}), NAMES)["blkio"]
    read = files[0].parse(b"8:0 Read 5\n8:0 Write 6\n8:0 Total 11\nTotal 11\n")
    done = files[1].parse(b"8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n")
    assert v1.combine(RawValues(**read, **done), 0.0)["io"] == {"8:0": (5, 6, 1, 2)}


def test_long_list_is_read_to_its_end_despite_short_reads(tmp_path, monkeypatch):
    pids = [str(pid) for pid in range(1, 20000, 7)]
    procs = tmp_path / "cgroup.procs"
    procs.write_text("".join(f"{pid}\n" for pid in pids))
    pread = os.pread

    def whole_lines(descriptor, size, offset):
        data = pread(descriptor, min(size, 4096), offset)
        return data[: data.rfind(b"\n") + 1]

    monkeypatch.setattr(os, "pread", whole_lines)
    assert read_path(str(procs)).decode().split() == pids
