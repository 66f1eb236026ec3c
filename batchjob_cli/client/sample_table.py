"""Samples as rows of a table, in units for people."""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from batchjob.quantities import energy, gpu, job
from batchjob.quantities.quantity import Quantity
from batchjob.runtime.formatting import size, to_printable
from batchjob.runtime.times import format_time
from batchjob_stats_db.samples.replay import SamplePair, cpu_percent, rate, total_rate

_TIME_WIDTH, _NODE_WIDTH = 24, 8


_Format = Callable[[float], str]


class MeasurementColumn(NamedTuple):
    """A column: its heading, width, number and text. None: not read."""

    heading: str
    width: int
    number: Callable[[SamplePair], float | None]
    text: _Format


def _fixed(digits: int, unit: str = "", times: float = 1.0) -> _Format:
    return lambda number: f"{number * times:.{digits}f}{unit}"


def _format_speed(number: float) -> str:
    """Bytes per second."""
    return f"{size(number)}/s"


_COUNT, _PERCENT, _MEGAHERTZ = _fixed(0), _fixed(1, times=100), _fixed(0, " MHz", 1e-6)


def _value_column(heading: str, width: int, quantity: Quantity, text: _Format) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda pair: pair.sample.sum(quantity), text)


def _rate_column(heading: str, width: int, quantity: Quantity, text: _Format) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda pair: total_rate(pair, quantity), text)


def _time_share_column(heading: str, quantity: Quantity, width: int = 8) -> MeasurementColumn:
    """A counter of seconds, as percent of the time."""
    return MeasurementColumn(heading, width, lambda pair: rate(pair, quantity), _PERCENT)


def _values(pair: SamplePair, quantity: Quantity) -> list[float]:
    """One for each GPU."""
    return [value for key, value in pair.sample.values.items() if key.quantity == quantity.name]


def _maximum_column(
    heading: str, width: int, quantity: Quantity, text: _Format
) -> MeasurementColumn:
    return MeasurementColumn(
        heading, width, lambda pair: max(_values(pair, quantity), default=None), text
    )


def _mean_utilization(pair: SamplePair) -> float | None:
    found = _values(pair, gpu.JOB_GPU_UTILIZATION)
    return fmean(found) if found else None


def _limit_share_column(heading: str, value: Quantity, limit: Quantity) -> MeasurementColumn:
    """A value in percent of its limit."""

    def part(pair: SamplePair) -> float | None:
        used, most = pair.sample.sum(value), pair.sample.sum(limit)
        return used / most if used is not None and most else None

    return MeasurementColumn(heading, 10, part, _PERCENT)


def _percent_of_cpus(pair: SamplePair) -> float | None:
    busy, cpus = cpu_percent(pair), pair.sample.get(job.CPUS.name)
    return busy / cpus if busy is not None and cpus else None


_CPU = MeasurementColumn("CPU %", 8, cpu_percent, _fixed(1))
_MEMORY = _value_column("MEMORY", 10, job.MEMORY_CURRENT, size)
_THREADS = _value_column("THREADS", 8, job.THREADS, _COUNT)
_POWER = _rate_column("POWER", 9, energy.ENERGY_JOULES, _fixed(1, " W"))
_GPU = MeasurementColumn("GPU %", 6, _mean_utilization, _fixed(0, times=100))
_FILES = (
    _rate_column("FILES READ", 12, job.PROCESS_IO_READ_BYTES, _format_speed),
    _rate_column("WRITTEN", 12, job.PROCESS_IO_WRITTEN_BYTES, _format_speed),
)

TYPES: Mapping[str, Sequence[MeasurementColumn]] = {
    "overview": (_CPU, _MEMORY, _THREADS, *_FILES, _GPU, _POWER),
    "cpu": (
        _CPU,
        _time_share_column("USER %", job.CPU_USER),
        _time_share_column("SYSTEM %", job.CPU_SYSTEM),
        _time_share_column("THROTTLED %", job.CPU_THROTTLED_SECONDS, 12),
        _time_share_column("WAITING %", job.CPU_WAITING, 10),
        _value_column("CPUS", 5, job.CPUS, _fixed(1)),
        MeasurementColumn("% OF CPUS", 10, _percent_of_cpus, _fixed(1)),
    ),
    "memory": (
        _MEMORY,
        _value_column("PEAK", 10, job.MEMORY_PEAK, size),
        _value_column("LIMIT", 10, job.MEMORY_LIMIT, size),
        _limit_share_column("% OF LIMIT", job.MEMORY_CURRENT, job.MEMORY_LIMIT),
        _value_column("ANONYMOUS", 10, job.MEMORY_ANON, size),
        _value_column("CACHE", 10, job.MEMORY_FILE, size),
        _value_column("SWAP", 10, job.MEMORY_SWAP, size),
        _rate_column("FAULTS/s", 9, job.PAGE_FAULTS_MINOR, _COUNT),
        _rate_column("MAJOR/s", 8, job.PAGE_FAULTS_MAJOR, _fixed(1)),
        _time_share_column("WAITING %", job.MEMORY_WAITING, 10),
        _value_column("OOM", 4, job.OOM_KILLS, _COUNT),
    ),
    "io": (
        _rate_column("DISK READ", 12, job.IO_READ_BYTES, _format_speed),
        _rate_column("WRITTEN", 12, job.IO_WRITTEN_BYTES, _format_speed),
        _rate_column("READS/s", 8, job.IO_READS, _COUNT),
        _rate_column("WRITES/s", 9, job.IO_WRITES, _COUNT),
        *_FILES,
        _time_share_column("WAITING %", job.IO_WAITING, 10),
    ),
    "network": (
        _rate_column("RECEIVED", 12, job.NETWORK_RECEIVE_BYTES, _format_speed),
        _rate_column("SENT", 12, job.NETWORK_TRANSMIT_BYTES, _format_speed),
        _rate_column("PACKETS IN", 11, job.NETWORK_RECEIVE_PACKETS, _COUNT),
        _rate_column("OUT", 9, job.NETWORK_TRANSMIT_PACKETS, _COUNT),
        _value_column("ERRORS", 7, job.NETWORK_RECEIVE_ERRORS, _COUNT),
    ),
    "processes": (
        _value_column("PROCESSES", 10, job.PROCESSES, _COUNT),
        _THREADS,
        _value_column("LIMIT", 8, job.THREADS_LIMIT, _COUNT),
        _limit_share_column("% OF LIMIT", job.THREADS, job.THREADS_LIMIT),
        _value_column("OPEN FILES", 11, job.OPEN_FILES, _COUNT),
        _value_column("LIMIT", 9, job.OPEN_FILES_LIMIT, _COUNT),
        _limit_share_column("% OF LIMIT", job.OPEN_FILES, job.OPEN_FILES_LIMIT),
    ),
    "gpu": (
        _GPU,
        _value_column("MEMORY", 10, gpu.JOB_GPU_MEMORY, size),
        _value_column("TOTAL", 10, gpu.JOB_GPU_MEMORY_TOTAL, size),
        _limit_share_column("% OF TOTAL", gpu.JOB_GPU_MEMORY, gpu.JOB_GPU_MEMORY_TOTAL),
        _value_column("PROCESSES", 10, gpu.JOB_GPU_PROCESSES, _COUNT),
        _value_column("BOARD POWER", 12, gpu.JOB_GPU_POWER, _fixed(1, " W")),
        _maximum_column("HOTTEST", 8, gpu.JOB_GPU_TEMPERATURE, _fixed(0, " °C")),
        _maximum_column("SM CLOCK", 9, gpu.JOB_GPU_SM_CLOCK, _MEGAHERTZ),
        _maximum_column("MEMORY CLOCK", 12, gpu.JOB_GPU_MEMORY_CLOCK, _MEGAHERTZ),
        _value_column("ECC CORR.", 9, gpu.JOB_GPU_ECC_CORRECTED, _COUNT),
        _value_column("ECC UNCORR.", 11, gpu.JOB_GPU_ECC_UNCORRECTED, _COUNT),
    ),
    "energy": (
        _POWER,
        _value_column("ENERGY", 12, energy.ENERGY_JOULES, _fixed(2, " Wh", 1 / 3600)),
        _value_column("EMISSIONS", 12, energy.EMISSIONS_GRAMS, _fixed(3, " g")),
    ),
}


ABSENCE_REASONS: Mapping[str, str] = {
    "network": "not counted: no network namespace of its own, or it may not be read"
}
"""By type of table: why a sample may have none of its values."""


def _columns(type: str, width: int | None) -> Sequence[MeasurementColumn]:
    """The first ones, as many as fit into a line of this width; None: all."""
    ends = accumulate(
        (2 + each.width for each in TYPES[type]), initial=_TIME_WIDTH + _NODE_WIDTH + 2
    )
    fitting = sum(width is None or end <= width for end in ends) - 1
    return TYPES[type][: max(fitting, 1)]


def heading(type: str, width: int | None = None) -> str:
    """The first line."""
    names = (f"{column.heading:>{column.width}}" for column in _columns(type, width))
    return "  ".join([f"{'TIME':<{_TIME_WIDTH}}", f"{'NODE':<{_NODE_WIDTH}}", *names])


def row(type: str, pair: SamplePair, zone: tzinfo | None = None, width: int | None = None) -> str:
    """The line of a sample; times are local unless a zone is given."""
    columns = _columns(type, width)
    numbers = [column.number(pair) for column in columns]
    texts = [
        "-" if number is None else column.text(number)
        for number, column in zip(numbers, columns, strict=True)
    ]
    words = [f"{text:>{column.width}}" for text, column in zip(texts, columns, strict=True)]
    if type in ABSENCE_REASONS and not any(number is not None for number in numbers):
        words.append(ABSENCE_REASONS[type])
    time, node = format_time(pair.sample.at, zone), to_printable(pair.header.node)
    return "  ".join([f"{time:<{_TIME_WIDTH}}", f"{node:<{_NODE_WIDTH}}", *words])
