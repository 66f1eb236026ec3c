"""Samples as rows of a table, in units for people."""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from itertools import accumulate
from typing import NamedTuple

from batchjob.quantities import energy, gpu, job
from batchjob.quantities.quantity import Quantity
from batchjob.runtime.formatting import size, to_printable
from batchjob.runtime.times import format_time
from batchjob_stats_db.samples.replay import SamplePair, cpu_percent, rate, total_rate

_TIME_WIDTH, _NODE_WIDTH = 24, 8


class MeasurementColumn(NamedTuple):
    """A column: its heading, width, and text. None: not read."""

    heading: str
    width: int
    text: Callable[[SamplePair], str | None]


def _number_formatter(digits: int, unit: str = "") -> Callable[[float | None], str | None]:
    return lambda number: None if number is None else f"{number:.{digits}f}{unit}"


def _format_size(number: float | None) -> str | None:
    return None if number is None else size(number)


def _format_speed(number: float | None) -> str | None:
    return None if number is None else f"{size(number)}/s"


_Formatter = Callable[[float | None], str | None]


def _value_column(
    heading: str, width: int, quantity: Quantity, format_value: _Formatter
) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda pair: format_value(pair.sample.sum(quantity)))


def _rate_column(
    heading: str, width: int, quantity: Quantity, format_value: _Formatter
) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda pair: format_value(total_rate(pair, quantity)))


def _time_share_column(heading: str, quantity: Quantity) -> MeasurementColumn:
    """A counter of seconds, as percent of the time."""
    return MeasurementColumn(
        heading, 8, lambda pair: _number_formatter(1)(_multiply(rate(pair, quantity), 100))
    )


def _multiply(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _values(pair: SamplePair, quantity: Quantity) -> list[float]:
    """One for each GPU."""
    return [value for key, value in pair.sample.values.items() if key.quantity == quantity.name]


def _mean(quantity: Quantity) -> Callable[[SamplePair], str | None]:
    def text(pair: SamplePair) -> str | None:
        found = _values(pair, quantity)
        return _number_formatter(0)(100 * sum(found) / len(found)) if found else None

    return text


def _maximum(quantity: Quantity, unit: str, per_unit: float) -> Callable[[SamplePair], str | None]:
    def text(pair: SamplePair) -> str | None:
        found = _values(pair, quantity)
        return f"{max(found) / per_unit:.0f}{unit}" if found else None

    return text


def _limit_share_column(heading: str, value: Quantity, limit: Quantity) -> MeasurementColumn:
    """A value in percent of its limit."""

    def text(pair: SamplePair) -> str | None:
        used, most = pair.sample.sum(value), pair.sample.sum(limit)
        return _number_formatter(1)(100 * used / most) if used is not None and most else None

    return MeasurementColumn(heading, 10, text)


def _format_percent_of_cpus(pair: SamplePair) -> str | None:
    busy, cpus = cpu_percent(pair), pair.sample.get(job.CPUS.name)
    return _number_formatter(1)(busy / cpus) if busy is not None and cpus else None


_COUNT = _number_formatter(0)
_CPU = MeasurementColumn("CPU %", 8, lambda pair: _number_formatter(1)(cpu_percent(pair)))
_MEMORY = _value_column("MEMORY", 10, job.MEMORY_CURRENT, _format_size)
_THREADS = _value_column("THREADS", 8, job.THREADS, _COUNT)
_POWER = MeasurementColumn(
    "POWER", 9, lambda pair: _number_formatter(1, " W")(total_rate(pair, energy.ENERGY_JOULES))
)
_GPU = MeasurementColumn("GPU %", 6, _mean(gpu.JOB_GPU_UTILIZATION))
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
        _time_share_column("THROTTLED %", job.CPU_THROTTLED_SECONDS)._replace(width=12),
        _time_share_column("WAITING %", job.CPU_WAITING)._replace(width=10),
        _value_column("CPUS", 5, job.CPUS, _number_formatter(1)),
        MeasurementColumn("% OF CPUS", 10, _format_percent_of_cpus),
    ),
    "memory": (
        _MEMORY,
        _value_column("PEAK", 10, job.MEMORY_PEAK, _format_size),
        _value_column("LIMIT", 10, job.MEMORY_LIMIT, _format_size),
        _limit_share_column("% OF LIMIT", job.MEMORY_CURRENT, job.MEMORY_LIMIT),
        _value_column("ANONYMOUS", 10, job.MEMORY_ANON, _format_size),
        _value_column("CACHE", 10, job.MEMORY_FILE, _format_size),
        _value_column("SWAP", 10, job.MEMORY_SWAP, _format_size),
        _rate_column("FAULTS/s", 9, job.PAGE_FAULTS_MINOR, _COUNT),
        _rate_column("MAJOR/s", 8, job.PAGE_FAULTS_MAJOR, _number_formatter(1)),
        _time_share_column("WAITING %", job.MEMORY_WAITING)._replace(width=10),
        _value_column("OOM", 4, job.OOM_KILLS, _COUNT),
    ),
    "io": (
        _rate_column("DISK READ", 12, job.IO_READ_BYTES, _format_speed),
        _rate_column("WRITTEN", 12, job.IO_WRITTEN_BYTES, _format_speed),
        _rate_column("READS/s", 8, job.IO_READS, _COUNT),
        _rate_column("WRITES/s", 9, job.IO_WRITES, _COUNT),
        *_FILES,
        _time_share_column("WAITING %", job.IO_WAITING)._replace(width=10),
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
        _value_column("MEMORY", 10, gpu.JOB_GPU_MEMORY, _format_size),
        _value_column("TOTAL", 10, gpu.JOB_GPU_MEMORY_TOTAL, _format_size),
        _limit_share_column("% OF TOTAL", gpu.JOB_GPU_MEMORY, gpu.JOB_GPU_MEMORY_TOTAL),
        _value_column("PROCESSES", 10, gpu.JOB_GPU_PROCESSES, _COUNT),
        _value_column("BOARD POWER", 12, gpu.JOB_GPU_POWER, _number_formatter(1, " W")),
        MeasurementColumn("HOTTEST", 8, _maximum(gpu.JOB_GPU_TEMPERATURE, " °C", 1)),
        MeasurementColumn("SM CLOCK", 9, _maximum(gpu.JOB_GPU_SM_CLOCK, " MHz", 1e6)),
        MeasurementColumn("MEMORY CLOCK", 12, _maximum(gpu.JOB_GPU_MEMORY_CLOCK, " MHz", 1e6)),
        _value_column("ECC CORR.", 9, gpu.JOB_GPU_ECC_CORRECTED, _COUNT),
        _value_column("ECC UNCORR.", 11, gpu.JOB_GPU_ECC_UNCORRECTED, _COUNT),
    ),
    "energy": (
        _POWER,
        _value_column(
            "ENERGY",
            12,
            energy.ENERGY_JOULES,
            lambda j: _number_formatter(2, " Wh")(_multiply(j, 1 / 3600)),
        ),
        _value_column("EMISSIONS", 12, energy.EMISSIONS_GRAMS, _number_formatter(3, " g")),
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
    texts = [column.text(pair) for column in columns]
    words = [f"{text or '-':>{column.width}}" for text, column in zip(texts, columns, strict=True)]
    if type in ABSENCE_REASONS and texts.count(None) == len(texts):
        words.append(ABSENCE_REASONS[type])
    time, node = format_time(pair.sample.at, zone), to_printable(pair.header.node)
    return "  ".join([f"{time:<{_TIME_WIDTH}}", f"{node:<{_NODE_WIDTH}}", *words])
