"""Samples as rows of a table, in units for people."""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple

from batchjob.quantities import energy, gpu, job
from batchjob.quantities.quantity import Quantity
from batchjob.runtime.formatting import size
from batchjob.runtime.times import time_in_words
from batchjob_stats_db.samples.rates import cpu_percent, rate, rates
from batchjob_stats_db.samples.replay import SamplePair

_TIME = 24


class MeasurementColumn(NamedTuple):
    """A column: its heading, width, and text. None: not read."""

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


def _value(heading: str, width: int, quantity: Quantity, told: _Told) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda step: told(step.sample.sum(quantity)))


def _grown(heading: str, width: int, quantity: Quantity, told: _Told) -> MeasurementColumn:
    return MeasurementColumn(heading, width, lambda step: told(rates(step, quantity)))


def _percent(heading: str, quantity: Quantity) -> MeasurementColumn:
    """Seconds per second."""
    return MeasurementColumn(heading, 8, lambda step: _plain(1)(_times(rate(step, quantity), 100)))


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _mean(quantity: Quantity) -> Callable[[SamplePair], str | None]:
    def text(step: SamplePair) -> str | None:
        values = step.sample.values.items()
        found = [value for key, value in values if key.quantity == quantity.name]
        return _plain(0)(100 * sum(found) / len(found)) if found else None

    return text


def _largest(quantity: Quantity, unit: str, per_unit: float) -> Callable[[SamplePair], str | None]:
    def text(step: SamplePair) -> str | None:
        values = step.sample.values.items()
        found = [value for key, value in values if key.quantity == quantity.name]
        return f"{max(found) / per_unit:.0f}{unit}" if found else None

    return text


def _part(heading: str, value: Quantity, limit: Quantity) -> MeasurementColumn:
    """A value in percent of its limit."""

    def text(step: SamplePair) -> str | None:
        used, most = step.sample.sum(value), step.sample.sum(limit)
        return _plain(1)(100 * used / most) if used is not None and most else None

    return MeasurementColumn(heading, 10, text)


def _of_cpus(step: SamplePair) -> str | None:
    busy, cpus = cpu_percent(step), step.sample.get(job.CPUS.name)
    return _plain(1)(busy / cpus) if busy is not None and cpus else None


_COUNT = _plain(0)
_CPU = MeasurementColumn("CPU %", 8, lambda step: _plain(1)(cpu_percent(step)))
_MEMORY = _value("MEMORY", 10, job.MEMORY_CURRENT, _size)
_THREADS = _value("THREADS", 8, job.THREADS, _COUNT)
_POWER = MeasurementColumn(
    "POWER", 9, lambda step: _plain(1, " W")(rates(step, energy.ENERGY_JOULES))
)
_GPU = MeasurementColumn("GPU %", 6, _mean(gpu.JOB_GPU_UTILIZATION))
_FILES = (
    _grown("FILES READ", 12, job.PROCESS_IO_READ_BYTES, _speed),
    _grown("WRITTEN", 12, job.PROCESS_IO_WRITTEN_BYTES, _speed),
)

TYPES: Mapping[str, Sequence[MeasurementColumn]] = {
    "overview": (_CPU, _MEMORY, _THREADS, *_FILES, _GPU, _POWER),
    "cpu": (
        _CPU,
        _percent("USER %", job.CPU_USER),
        _percent("SYSTEM %", job.CPU_SYSTEM),
        _percent("THROTTLED %", job.CPU_THROTTLED_SECONDS)._replace(width=12),
        _percent("WAITING %", job.CPU_WAITING)._replace(width=10),
        _value("CPUS", 5, job.CPUS, _plain(1)),
        MeasurementColumn("% OF CPUS", 10, _of_cpus),
    ),
    "memory": (
        _MEMORY,
        _value("PEAK", 10, job.MEMORY_PEAK, _size),
        _value("LIMIT", 10, job.MEMORY_LIMIT, _size),
        _part("% OF LIMIT", job.MEMORY_CURRENT, job.MEMORY_LIMIT),
        _value("ANONYMOUS", 10, job.MEMORY_ANON, _size),
        _value("CACHE", 10, job.MEMORY_FILE, _size),
        _value("SWAP", 10, job.MEMORY_SWAP, _size),
        _grown("FAULTS/s", 9, job.PAGE_FAULTS_MINOR, _COUNT),
        _grown("MAJOR/s", 8, job.PAGE_FAULTS_MAJOR, _plain(1)),
        _percent("WAITING %", job.MEMORY_WAITING)._replace(width=10),
        _value("OOM", 4, job.OOM_KILLS, _COUNT),
    ),
    "io": (
        _grown("DISK READ", 12, job.IO_READ_BYTES, _speed),
        _grown("WRITTEN", 12, job.IO_WRITTEN_BYTES, _speed),
        _grown("READS/s", 8, job.IO_READS, _COUNT),
        _grown("WRITES/s", 9, job.IO_WRITES, _COUNT),
        *_FILES,
        _percent("WAITING %", job.IO_WAITING)._replace(width=10),
    ),
    "network": (
        _grown("RECEIVED", 12, job.NETWORK_RECEIVE_BYTES, _speed),
        _grown("SENT", 12, job.NETWORK_TRANSMIT_BYTES, _speed),
        _grown("PACKETS IN", 11, job.NETWORK_RECEIVE_PACKETS, _COUNT),
        _grown("OUT", 9, job.NETWORK_TRANSMIT_PACKETS, _COUNT),
        _value("ERRORS", 7, job.NETWORK_RECEIVE_ERRORS, _COUNT),
    ),
    "processes": (
        _value("PROCESSES", 10, job.PROCESSES, _COUNT),
        _THREADS,
        _value("LIMIT", 8, job.THREADS_LIMIT, _COUNT),
        _part("% OF LIMIT", job.THREADS, job.THREADS_LIMIT),
        _value("OPEN FILES", 11, job.OPEN_FILES, _COUNT),
        _value("LIMIT", 9, job.OPEN_FILES_LIMIT, _COUNT),
        _part("% OF LIMIT", job.OPEN_FILES, job.OPEN_FILES_LIMIT),
    ),
    "gpu": (
        _GPU,
        _value("MEMORY", 10, gpu.JOB_GPU_MEMORY, _size),
        _value("TOTAL", 10, gpu.JOB_GPU_MEMORY_TOTAL, _size),
        _part("% OF TOTAL", gpu.JOB_GPU_MEMORY, gpu.JOB_GPU_MEMORY_TOTAL),
        _value("PROCESSES", 10, gpu.JOB_GPU_PROCESSES, _COUNT),
        _value("BOARD POWER", 12, gpu.JOB_GPU_POWER, _plain(1, " W")),
        MeasurementColumn("HOTTEST", 8, _largest(gpu.JOB_GPU_TEMPERATURE, " °C", 1)),
        MeasurementColumn("SM CLOCK", 9, _largest(gpu.JOB_GPU_SM_CLOCK, " MHz", 1e6)),
        MeasurementColumn("MEMORY CLOCK", 12, _largest(gpu.JOB_GPU_MEMORY_CLOCK, " MHz", 1e6)),
        _value("ECC CORR.", 9, gpu.JOB_GPU_ECC_CORRECTED, _COUNT),
        _value("ECC UNCORR.", 11, gpu.JOB_GPU_ECC_UNCORRECTED, _COUNT),
    ),
    "energy": (
        _POWER,
        _value("ENERGY", 12, energy.ENERGY_JOULES, lambda j: _plain(2, " Wh")(_times(j, 1 / 3600))),
        _value("EMISSIONS", 12, energy.EMISSIONS_GRAMS, _plain(3, " g")),
    ),
}


ABSENT: Mapping[str, str] = {
    "network": "not counted: no network namespace of its own",
}
"""What is said of a sample that has none of a table's numbers, where the reason is not plain."""


def heading(type: str) -> str:
    """The first line."""
    names = (f"{column.heading:>{column.width}}" for column in TYPES[type])
    return "  ".join([f"{'TIME':<{_TIME}}", *names])


def row(type: str, step: SamplePair, zone: tzinfo | None = None) -> str:
    """The line of a sample; times are local unless a zone is given."""
    columns = TYPES[type]
    texts = [column.text(step) for column in columns]
    words = [f"{text or '-':>{column.width}}" for text, column in zip(texts, columns, strict=True)]
    if type in ABSENT and texts.count(None) == len(texts):
        words.append(ABSENT[type])
    return "  ".join([f"{time_in_words(step.sample.at, zone):<{_TIME}}", *words])
