"""Values derived from two successive samples: rates, sums, power."""

from typing import Any

from batchjob.quantities.energy import ENERGY_JOULES
from batchjob.quantities.index import BY_NAME, QUANTITIES
from batchjob.quantities.job import CPU_SYSTEM, CPU_USER, IO, NETWORK
from batchjob.quantities.quantity import Quantity
from batchjob.quantities.sample import SampleKey
from batchjob_stats_db.samples.format import group_values
from batchjob_stats_db.samples.replay import SamplePair

_RATE_COUNTERS = frozenset(
    quantity.name
    for quantity in QUANTITIES
    if quantity.is_counter and quantity.metric.group in ("io", "process-io", "network")
)
_POSITIONS = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}


def rate(pair: SamplePair, quantity: Quantity, *of: str) -> float | None:
    """Increase of a counter per second; None if unknown, for example after a reset."""
    return _rate(pair, SampleKey(quantity.name, of))


def total_rate(pair: SamplePair, quantity: Quantity) -> float | None:
    """The sum of the rates of all devices, GPUs and so on."""
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
