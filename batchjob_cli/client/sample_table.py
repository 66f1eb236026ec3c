"""Samples as lines of a table, in units for people."""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple

from batchjob.runtime.formatting import size
from batchjob.runtime.times import time_in_words
from batchjob_stats_db.samples.rates import cpu_percent, rate, rates
from batchjob_stats_db.samples.replay import SamplePair

_TIME = 24


class SampleColumn(NamedTuple):
    """A column: its heading, width, and what stands there. None: not read."""

    heading: str
    width: int
    text: Callable[[SamplePair], str | None]


def _plain(digits: int, unit: str = "") -> Callable[[float | None], str | None]:
    return lambda number: None if number is None else f"{number:.{digits}f}{unit}"


def _size(number: float | None) -> str | None:
    return None if number is None else size(number)


def _speed(number: float | None) -> str | None:
    return None if number is None else f"{size(number)}/s"


_Told = Callable[[float | None], str | None]


def _value(heading: str, width: int, name: str, told: _Told) -> SampleColumn:
    return SampleColumn(heading, width, lambda step: told(step.sample.sum(name)))


def _grown(heading: str, width: int, name: str, told: _Told) -> SampleColumn:
    return SampleColumn(heading, width, lambda step: told(rates(step, name)))


def _percent(heading: str, name: str) -> SampleColumn:
    """Seconds per second."""
    return SampleColumn(heading, 8, lambda step: _plain(1)(_times(rate(step, name), 100)))


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _mean(name: str) -> Callable[[SamplePair], str | None]:
    def text(step: SamplePair) -> str | None:
        found = [value for each, value in step.sample.values.items() if each.quantity == name]
        return _plain(0)(100 * sum(found) / len(found)) if found else None

    return text


def _largest(name: str, unit: str, per_unit: float) -> Callable[[SamplePair], str | None]:
    def text(step: SamplePair) -> str | None:
        found = [value for each, value in step.sample.values.items() if each.quantity == name]
        return f"{max(found) / per_unit:.0f}{unit}" if found else None

    return text


def _part(heading: str, value: str, limit: str) -> SampleColumn:
    """A value in percent of its limit."""

    def text(step: SamplePair) -> str | None:
        used, most = step.sample.sum(value), step.sample.sum(limit)
        return _plain(1)(100 * used / most) if used is not None and most else None

    return SampleColumn(heading, 10, text)


def _of_cpus(step: SamplePair) -> str | None:
    busy, cpus = cpu_percent(step), step.sample.get("cpus")
    return _plain(1)(busy / cpus) if busy is not None and cpus else None


_COUNT = _plain(0)
_CPU = SampleColumn("CPU %", 8, lambda step: _plain(1)(cpu_percent(step)))
_MEMORY = _value("MEMORY", 10, "memory_current_bytes", _size)
_THREADS = _value("THREADS", 8, "threads", _COUNT)
_POWER = SampleColumn("POWER", 9, lambda step: _plain(1, " W")(rates(step, "energy_joules")))
_GPU = SampleColumn("GPU %", 6, _mean("gpu_utilization_ratio"))
_FILES = (
    _grown("FILES READ", 12, "process_io_read_bytes", _speed),
    _grown("WRITTEN", 12, "process_io_written_bytes", _speed),
)

TYPES: Mapping[str, Sequence[SampleColumn]] = {
    "overview": (_CPU, _MEMORY, _THREADS, *_FILES, _GPU, _POWER),
    "cpu": (
        _CPU,
        _percent("USER %", "cpu_user_seconds"),
        _percent("SYSTEM %", "cpu_system_seconds"),
        _percent("THROTTLED %", "cpu_throttled_seconds")._replace(width=12),
        _percent("WAITING %", "cpu_waiting_seconds")._replace(width=10),
        _value("CPUS", 5, "cpus", _plain(1)),
        SampleColumn("% OF CPUS", 10, _of_cpus),
    ),
    "memory": (
        _MEMORY,
        _value("PEAK", 10, "memory_peak_bytes", _size),
        _value("LIMIT", 10, "memory_limit_bytes", _size),
        _part("% OF LIMIT", "memory_current_bytes", "memory_limit_bytes"),
        _value("ANONYMOUS", 10, "memory_anon_bytes", _size),
        _value("CACHE", 10, "memory_file_bytes", _size),
        _value("SWAP", 10, "memory_swap_bytes", _size),
        _grown("FAULTS/s", 9, "page_faults_minor", _COUNT),
        _grown("MAJOR/s", 8, "page_faults_major", _plain(1)),
        _percent("WAITING %", "memory_waiting_seconds")._replace(width=10),
        _value("OOM", 4, "oom_kills", _COUNT),
    ),
    "io": (
        _grown("DISK READ", 12, "io_read_bytes", _speed),
        _grown("WRITTEN", 12, "io_written_bytes", _speed),
        _grown("READS/s", 8, "io_reads", _COUNT),
        _grown("WRITES/s", 9, "io_writes", _COUNT),
        *_FILES,
        _percent("WAITING %", "io_waiting_seconds")._replace(width=10),
    ),
    "network": (
        _grown("RECEIVED", 12, "network_receive_bytes", _speed),
        _grown("SENT", 12, "network_transmit_bytes", _speed),
        _grown("PACKETS IN", 11, "network_receive_packets", _COUNT),
        _grown("OUT", 9, "network_transmit_packets", _COUNT),
        _value("ERRORS", 7, "network_receive_errors", _COUNT),
    ),
    "processes": (
        _value("PROCESSES", 10, "processes", _COUNT),
        _THREADS,
        _value("LIMIT", 8, "threads_limit", _COUNT),
        _part("% OF LIMIT", "threads", "threads_limit"),
        _value("OPEN FILES", 11, "open_files", _COUNT),
    ),
    "gpu": (
        _GPU,
        _value("MEMORY", 10, "gpu_memory_bytes", _size),
        _value("TOTAL", 10, "gpu_memory_total_bytes", _size),
        _part("% OF TOTAL", "gpu_memory_bytes", "gpu_memory_total_bytes"),
        _value("PROCESSES", 10, "gpu_processes", _COUNT),
        _value("BOARD POWER", 12, "gpu_power_watts", _plain(1, " W")),
        SampleColumn("HOTTEST", 8, _largest("gpu_temperature_celsius", " °C", 1)),
        SampleColumn("SM CLOCK", 9, _largest("gpu_sm_clock_hertz", " MHz", 1e6)),
        SampleColumn("MEMORY CLOCK", 12, _largest("gpu_memory_clock_hertz", " MHz", 1e6)),
        _value("ECC FIXED", 9, "gpu_ecc_corrected_errors", _COUNT),
        _value("NOT FIXED", 9, "gpu_ecc_uncorrected_errors", _COUNT),
    ),
    "energy": (
        _POWER,
        _value("ENERGY", 12, "energy_joules", lambda j: _plain(2, " Wh")(_times(j, 1 / 3600))),
        _value("EMISSIONS", 12, "emissions_grams", _plain(3, " g")),
    ),
}


def heading(type: str) -> str:
    """The first line."""
    names = (f"{column.heading:>{column.width}}" for column in TYPES[type])
    return "  ".join([f"{'TIME':<{_TIME}}", *names])


def row(type: str, step: SamplePair, zone: tzinfo | None = None) -> str:
    """The line of a sample; times are local unless a zone is given."""
    texts = (f"{column.text(step) or '-':>{column.width}}" for column in TYPES[type])
    return "  ".join([f"{time_in_words(step.sample.at, zone):<{_TIME}}", *texts])
