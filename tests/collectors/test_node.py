"""/proc/stat and /proc/meminfo, recorded and live."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.host import Host
from collectors.node import (
    BOOT_TIME,
    CPU_SECONDS,
    CPUS,
    MEMORY_AVAILABLE,
    MEMORY_TOTAL,
    METRICS,
    NodeCollector,
    parse_meminfo,
    parse_stat,
    read_memory,
    read_stat,
)

STAT = b"""cpu  1000 20 300 40000 50 0 7 8 90 10
cpu0 500 10 150 20000 25 0 3 4 45 5
cpu1 500 10 150 20000 25 0 4 4 45 5
intr 12345 0 0 0
ctxt 987654
btime 1795181442
processes 4242
procs_running 1
procs_blocked 0
softirq 1 2 3
"""
MEMINFO = b"""MemTotal:       24684096 kB
MemFree:        21000000 kB
MemAvailable:   23500000 kB
HugePages_Total:       0
"""


@pytest.fixture
def procfs(tmp_path):
    (tmp_path / "stat").write_bytes(STAT)
    (tmp_path / "meminfo").write_bytes(MEMINFO)
    return tmp_path


def test_stat():
    times = parse_stat(STAT, ticks_per_second=100)
    assert times.modes == (10.0, 0.2, 3.0, 400.0, 0.5, 0.0, 0.07, 0.08)
    assert times.cpus == 2
    assert times.boot_time == 1795181442
    assert times.busy_seconds == pytest.approx(13.27)  # neither idle, iowait nor steal


def test_meminfo():
    assert parse_meminfo(MEMINFO) == (24684096 * 1024, 23500000 * 1024)


def test_kernel_without_mem_available(procfs):
    """Linux before 3.14."""
    (procfs / "meminfo").write_bytes(b"MemTotal: 100 kB\nMemFree: 50 kB\n")
    node = NodeCollector(Host(procfs=str(procfs)))
    families = {family.metric: family.samples for family in node.collect()}
    assert families[MEMORY_TOTAL] == [("", 102400.0)]
    assert families[MEMORY_AVAILABLE] == []


@pytest.mark.parametrize("text", [b"", b"cpu 1 2 3\ncpu0 1\nbtime 5\n", b"\xff\xfe", STAT[:60]])
def test_incomplete_stat_is_an_error(text):
    with pytest.raises(ValueError, match="stat"):
        parse_stat(text, ticks_per_second=100)


@pytest.mark.parametrize("text", [b"", MEMINFO[32:], b"MemTotal: 5 pages\n"])
def test_incomplete_meminfo_is_an_error(text):
    with pytest.raises(ValueError, match="meminfo"):
        parse_meminfo(text)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_value_error(text):
    for parse in (parse_meminfo, lambda data: parse_stat(data, 100)):
        with contextlib.suppress(ValueError):
            parse(text)


def test_families(procfs):
    node = NodeCollector(Host(procfs=str(procfs)))
    families = {family.metric: family.samples for family in node.collect()}
    assert tuple(families) == METRICS
    assert ('mode="idle"', 400.0) in families[CPU_SECONDS]
    assert families[CPUS] == [("", 2.0)]
    assert families[BOOT_TIME] == [("", 1795181442.0)]


def test_stat_longer_than_one_read(procfs):
    text = STAT.replace(b"intr 12345", b"intr 12345" + b" 0" * 100_000)
    (procfs / "stat").write_bytes(text)
    assert read_stat(str(procfs)).boot_time == 1795181442


def test_this_machine():
    assert read_stat("/proc").busy_seconds > 0
    total, available = read_memory("/proc")
    assert 0 < available <= total
