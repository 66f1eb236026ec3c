"""Values derived from two successive samples: rates, sums, power."""

from typing import Any

from batchjob.quantities.energy import ENERGY_JOULES
from batchjob.quantities.index import BY_NAME, QUANTITIES
from batchjob.quantities.job import CPU_SYSTEM, CPU_USER, IO, NETWORK
from batchjob.quantities.quantity import Quantity
from batchjob.quantities.sample import SampleKey
from batchjob_stats_db.samples.format import numbers
from batchjob_stats_db.samples.replay import SamplePair

_RATED = frozenset(
    quantity.name
    for quantity in QUANTITIES
    if quantity.counter and quantity.metric.group in ("io", "process-io", "network")
)
_ORDER = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}


def rate(step: SamplePair, quantity: Quantity, *of: str) -> float | None:
    """Increase of a counter per second; None if unknown, for example after a reset."""
    return _rate(step, SampleKey(quantity.name, of))


def rates(step: SamplePair, quantity: Quantity) -> float | None:
    """The sum of the rates of all devices, GPUs and so on."""
    names = [name for name in step.sample.values if name.quantity == quantity.name]
    found = [each for name in names if (each := _rate(step, name)) is not None]
    return sum(found) if found else None


def cpu_percent(step: SamplePair) -> float | None:
    """CPU time per elapsed time; 100 is one CPU."""
    user, system = rate(step, CPU_USER), rate(step, CPU_SYSTEM)
    return None if user is None or system is None else 100 * (user + system)


def _rate(step: SamplePair, name: SampleKey) -> float | None:
    before = step.before.values.get(name) if step.before is not None else None
    value = step.sample.values.get(name)
    if step.before is None or before is None or value is None or value < before:
        return None
    seconds = step.sample.at - step.before.at
    return (value - before) / seconds if seconds > 0 else None


def document(step: SamplePair) -> dict[str, Any]:
    """A sample as an object, as in a file, with rates, sums and power added."""
    made: dict[str, Any] = {
        "time": step.sample.at,
        "jobid": step.who.jobid,
        "node": step.who.node,
        "cpu_percent": cpu_percent(step),
        "power_watts": rates(step, ENERGY_JOULES),
    }
    values = step.sample.values
    names = sorted(values, key=lambda each: (_ORDER[each.quantity], each.of))
    made |= numbers({name: values[name] for name in names})
    for name in names:
        if name.quantity in _RATED and (grown := _rate(step, name)) is not None:
            quantity = BY_NAME[name.quantity]
            where = made[quantity.group.name][" ".join(name.of)] if quantity.group else made
            where[f"{quantity.within or quantity.name}_per_second"] = grown
    for group in (IO, NETWORK):
        if group.name in made:
            made[f"{group.name}_total"] = _total(made[group.name].values())
    return {key: _rounded(value) for key, value in made.items() if value is not None}


def _total(devices: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for device in devices:
        for key, value in device.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _rounded(value: Any) -> Any:
    """The number without digits that result only from the division."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 4)
    return value
