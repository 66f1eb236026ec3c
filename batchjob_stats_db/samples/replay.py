"""A job's samples from the first one on, then new ones as they arrive, and their rates."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.quantities.energy import ENERGY_JOULES
from batchjob.quantities.job import CPU_SYSTEM, CPU_USER, IO, NETWORK
from batchjob.quantities.quantity import Quantity
from batchjob.quantities.sample import BY_NAME, END, QUANTITIES, JobSample, SampleHeader, SampleKey
from batchjob_stats_db.samples.file import SampleFile, group_values
from batchjob_stats_db.samples.folder import files_of, folder_of

_PATIENCE_SECONDS = 2.0


class SamplePair(NamedTuple):
    """A sample, and the previous one on the same node."""

    header: SampleHeader
    sample: JobSample
    before: JobSample | None


class Replay:
    """Reads all files of one job in order; each call returns what is new."""

    def __init__(
        self, samples: Path, jobid: str, wanted: Callable[[SampleHeader], bool] = lambda _: True
    ) -> None:
        """`wanted`: selects samples, since several users may have used an id."""
        self.damages: list[str] = []
        self._folder = folder_of(samples, jobid)
        self._wanted = wanted
        self._open: dict[Path, SampleFile] = {}
        self._done: set[Path] = set()
        self._last: dict[tuple[str, ...], SamplePair] = {}
        self._last_path: dict[tuple[str, ...], Path] = {}  # of the file of the last sample

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self) -> Iterator[SamplePair]:
        """The samples that are new since the last call; raises OSError."""
        for path in files_of(self._folder):
            if path in self._done:
                continue
            file = self._open.get(path) or SampleFile(path)
            self._open[path] = file
            # Check before reading, so that the old file is read to its end.
            replaced = file.is_replaced
            for sample in file.read():
                if (pair := self._next_pair(path, file.header, sample)) is not None:
                    yield pair
            if file.damage:
                self.damages.append(f"{path}: partly read: {file.damage}")
            if file.damage or file.is_complete or replaced:
                self._done.add(path)
                self._open.pop(path).close()

    @property
    def has_samples(self) -> bool:
        return bool(self._last)

    def is_over(self, now: float) -> bool:
        """Whether no more samples are expected: the job has ended, or is no longer recorded."""
        if any(file.is_being_written for file in self._open.values()):
            return bool(self._last) and all(END in x.sample.values for x in self._last.values())
        return all(
            END in pair.sample.values
            or now - pair.sample.at > 3 * pair.header.interval_seconds + _PATIENCE_SECONDS
            for pair in self._last.values()
        )

    def _next_pair(
        self, path: Path, header: SampleHeader | None, sample: JobSample
    ) -> SamplePair | None:
        if header is None or not self._wanted(header):
            return None
        key = header[:4]
        last = self._last.get(key)
        if last is not None and sample.at <= last.sample.at and path != self._last_path[key]:
            return None  # already recorded, by another recorder
        pair = SamplePair(header, sample, last and last.sample)
        self._last[key], self._last_path[key] = pair, path
        return pair


_RATE_COUNTERS = frozenset(
    quantity.name
    for quantity in QUANTITIES
    if quantity.metric.kind == "counter"
    and quantity.metric.group in ("io", "process-io", "network")
)
_POSITIONS = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}


def rate(pair: SamplePair, quantity: Quantity, *of: str) -> float | None:
    """Increase of a counter per second; None if unknown, for example after a reset."""
    return _rate(pair, SampleKey(quantity.name, of))


def total_rate(pair: SamplePair, quantity: Quantity) -> float | None:
    names = [name for name in pair.sample.values if name.quantity == quantity.name]
    found = [each for name in names if (each := _rate(pair, name)) is not None]
    return sum(found) if found else None


def cpu_percent(pair: SamplePair) -> float | None:
    """CPU time per elapsed time; 100 is one CPU."""
    user, system = rate(pair, CPU_USER), rate(pair, CPU_SYSTEM)
    return None if user is None or system is None else 100 * (user + system)


def _rate(pair: SamplePair, name: SampleKey) -> float | None:
    before = pair.before.values.get(name) if pair.before is not None else None
    value = pair.sample.values.get(name)
    if pair.before is None or before is None or value is None or value < before:
        return None
    seconds = pair.sample.at - pair.before.at
    return (value - before) / seconds if seconds > 0 else None


def sample_document(pair: SamplePair) -> dict[str, Any]:
    """A sample as an object, as in a file, with rates, sums and power added."""
    document: dict[str, Any] = {
        "time": pair.sample.at,
        "jobid": pair.header.jobid,
        "node": pair.header.node,
        "cpu_percent": cpu_percent(pair),
        "power_watts": total_rate(pair, ENERGY_JOULES),
    }
    values = pair.sample.values
    names = sorted(values, key=lambda each: (_POSITIONS[each.quantity], each.of))
    document |= group_values({name: values[name] for name in names})
    for name in names:
        if name.quantity in _RATE_COUNTERS and (per_second := _rate(pair, name)) is not None:
            quantity = BY_NAME[name.quantity]
            target = (
                document[quantity.group.name][" ".join(name.of)] if quantity.group else document
            )
            target[f"{quantity.name_in_group or quantity.name}_per_second"] = per_second
    for group in (IO, NETWORK):
        if group.name in document:
            document[f"{group.name}_total"] = _sum_devices(document[group.name].values())
    return {key: _round(value) for key, value in document.items() if value is not None}


def _sum_devices(devices: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for device in devices:
        for key, value in device.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _round(value: Any) -> Any:
    """The number without digits that result only from the division."""
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 4)
    return value
