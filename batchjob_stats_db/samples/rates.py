"""What follows from two samples, one after the other: rates, sums, power."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchjob.quantities.sample import (
    BY_NAME,
    GROUP_BY_KEY,
    GROUPS,
    QUANTITIES,
    JobSample,
    SampleGroup,
    SampleKey,
)
from batchjob_stats_db.samples.replay import SamplePair

_RATED = frozenset(
    quantity.name
    for quantity in QUANTITIES
    if quantity.counter and (quantity.group in ("io", "net") or "io_" in quantity.name)
) - {"io_waiting_seconds", "io_stalled_seconds"}
_SUMMED = ("io", "network")
_ORDER = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}


def rate(step: SamplePair, quantity: str, *of: str) -> float | None:
    """Growth per second of a counter; None where that is not known, as after it began anew."""
    return _rate(step, SampleKey(quantity, of))


def rates(step: SamplePair, quantity: str) -> float | None:
    """The sum of the rates of all devices, GPUs or whatever."""
    names = [name for name in step.sample.values if name.quantity == quantity]
    found = [each for name in names if (each := _rate(step, name)) is not None]
    return sum(found) if found else None


def cpu_percent(step: SamplePair) -> float | None:
    """CPU time per time; 100 is one CPU."""
    user, system = rate(step, "cpu_user_seconds"), rate(step, "cpu_system_seconds")
    return None if user is None or system is None else 100 * (user + system)


def _rate(step: SamplePair, name: SampleKey) -> float | None:
    before = step.before.values.get(name) if step.before is not None else None
    value = step.sample.values.get(name)
    if step.before is None or before is None or value is None or value < before:
        return None
    seconds = step.sample.at - step.before.at
    return (value - before) / seconds if seconds > 0 else None


def document(step: SamplePair) -> dict[str, Any]:
    """A sample as an object with names instead of keys; with rates, sums and power."""
    made: dict[str, Any] = {
        "time": step.sample.at,
        "jobid": step.who.jobid,
        "node": step.who.node,
        "cpu_percent": cpu_percent(step),
        "power_watts": rates(step, "energy_joules"),
    }
    for name in sorted(step.sample.values, key=lambda each: (_ORDER[each.quantity], each.of)):
        _place(made, step, name)
    for group in _SUMMED:
        if group in made:
            made[f"{group}_total"] = _total(made[group].values())
    return {key: _rounded(value) for key, value in made.items() if value is not None}


def sample_of(made: Mapping[str, Any]) -> JobSample:
    """The sample of a document."""
    values: dict[SampleKey, float] = {}
    for key, value in made.items():
        if key in _GROUPS and isinstance(value, dict):
            values.update(_of_group(_GROUPS[key], value))
        elif key in BY_NAME and isinstance(value, int | float):
            values[SampleKey(key)] = value
    return JobSample(made["time"], values)


_GROUPS = {group.name: group for group in GROUPS}


def _of_group(group: SampleGroup, made: Mapping[str, Any]) -> Iterator[tuple[SampleKey, float]]:
    for text, value in made.items():
        of = tuple(text.split(" "))
        if not isinstance(value, dict):
            yield SampleKey(group.name, of), value
            continue
        for told, number in value.items():
            name = f"{group.name.removesuffix('s')}_{told}"
            if name in BY_NAME:
                yield SampleKey(name, of), number


def _place(made: dict[str, Any], step: SamplePair, name: SampleKey) -> None:
    quantity = BY_NAME[name.quantity]
    told, where = quantity.name, made
    if quantity.group:
        group = GROUP_BY_KEY[quantity.group]
        where = made.setdefault(group.name, {})
        if not quantity.key:
            where[" ".join(name.of)] = step.sample.values[name]
            return
        where = where.setdefault(" ".join(name.of), {})
        told = quantity.name.removeprefix(f"{group.name.removesuffix('s')}_")
    where[told] = step.sample.values[name]
    if quantity.name in _RATED and (grown := _rate(step, name)) is not None:
        where[f"{told}_per_second"] = grown


def _total(devices: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for device in devices:
        for key, value in device.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _rounded(value: Any) -> Any:
    """Without the digits that only the division has made."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 4)
    return value
