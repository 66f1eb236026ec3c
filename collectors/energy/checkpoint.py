"""Saves the ledger to disk, so that a restarted exporter continues where it stopped.

Prometheus takes a counter that decreases for one that restarted from 0 and counts it twice, so the
file is written before its numbers are exposed. Totals and readings are valid only for the boot in
which they were written; the learned idle power remains valid.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from collectors.energy.ledger import LearnedIdlePower, Ledger, LedgerEntry
from collectors.energy.split import NodeSnapshot
from collectors.jobs.view import JobCpu, JobName, parse_name
from collectors.power.meter import GpuEnergyReading, MeterReading

FILE = "energy.json"
_SNAPSHOT = ("at", "epoch", "meter", "processors", "jobs", "gpus")


def restore(saved: Mapping[str, Any], of_boot: bool, meter: str, ledger: Ledger) -> bool:
    """Fill a new ledger; True if its totals continue, False if they restart.

    `of_boot`: it is of this boot. Raises ValueError for a damaged one, after which the
    ledger must be discarded.
    """
    try:
        if saved["meter"] == meter:
            ledger.idle.learned = _decode(LearnedIdlePower | None, saved["idle"])
        for uuid, learned in saved["gpu_idle"].items():
            ledger.gpu_idle[uuid].learned = _decode(LearnedIdlePower | None, learned)
        if saved["meter"] != meter or not of_boot:
            return False
        _restore_totals(saved, ledger)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"damaged state: {type(error).__name__}: {error}") from error
    return True


def document(meter: str, collectors: Sequence[str], ledger: Ledger) -> dict[str, Any]:
    """The content of the file; `collectors`: those from which the meter was chosen."""
    return {
        "meter": meter,
        "collectors": collectors,
        "idle": ledger.idle.learned,
        "gpu_idle": {uuid: idle.learned for uuid, idle in ledger.gpu_idle.items()},
        "jobs": [
            {
                "key": name[:3],
                "seen_at": job.seen_at,
                "joules": _rows(job.joules.items()),
                "grams": job.grams,
            }
            for name, job in ledger.jobs.items()
        ],
        "node": _rows(ledger.node.items()),
        "metered_joules": ledger.metered_joules,
        "overdrawn_joules": ledger.overdrawn_joules,
        "seconds_without_data": ledger.seconds_without_data,
        "gpu_seconds_without_data": ledger.gpu_seconds_without_data,
        "settled_until": ledger.accounted_until,
        "since": ledger.last_snapshot and _snapshot_document(ledger.last_snapshot),
        "gpus_since": _gpu_rows(ledger.last_gpu_readings),
    }


def _restore_totals(document: Mapping[str, Any], ledger: Ledger) -> None:
    for row in document["jobs"]:
        job = LedgerEntry(float(row["seen_at"]))
        job.joules.update(_sums(row["joules"]))
        job.grams.update({str(provider): float(grams) for provider, grams in row["grams"].items()})
        ledger.jobs[parse_name(row["key"])] = job
    ledger.node.update(_sums(document["node"]))
    ledger.metered_joules = float(document["metered_joules"])
    ledger.overdrawn_joules = float(document["overdrawn_joules"])
    ledger.seconds_without_data = float(document["seconds_without_data"])
    ledger.gpu_seconds_without_data = float(document["gpu_seconds_without_data"])
    ledger.accounted_until = _decode(float | None, document["settled_until"])
    since = document["since"]
    ledger.last_snapshot = None if since is None else _parse_snapshot(since)
    ledger.last_gpu_readings = _parse_gpus(document["gpus_since"])


def _rows(sums: Iterable[tuple[tuple[str, str], float]]) -> list[tuple[str, str, float]]:
    return [(*names, joules) for names, joules in sums]


def _sums(rows: list[Any]) -> dict[Any, float]:
    return {(str(component), str(what)): float(joules) for component, what, joules in rows}


def _snapshot_document(snapshot: NodeSnapshot) -> dict[str, Any]:
    at, epoch, meter, *processors, jobs, gpus = snapshot
    row = (at, epoch, meter, processors, list(jobs.values()), _gpu_rows(gpus))
    return dict(zip(_SNAPSHOT, row, strict=True))


def _parse_snapshot(document: Mapping[str, Any]) -> NodeSnapshot:
    at, epoch, meter, processors, job_rows, gpus = (document[name] for name in _SNAPSHOT)
    types = (float, float, MeterReading, float, int)
    values = map(_decode, types, (at, epoch, meter, *processors))
    jobs: tuple[JobCpu, ...] = _decode(tuple[JobCpu, ...], job_rows)
    return NodeSnapshot._make([*values, {job.name: job for job in jobs}, _parse_gpus(gpus)])


def _gpu_rows(gpus: Mapping[str, GpuEnergyReading]) -> list[tuple[Any, ...]]:
    """Without the power, which is of use only for the interval that a reading ends."""
    return [each[:5] for each in gpus.values()]


def _parse_gpus(rows: list[Any]) -> dict[str, GpuEnergyReading]:
    readings: tuple[GpuEnergyReading, ...] = _decode(tuple[GpuEnergyReading, ...], rows)
    return {reading.uuid: reading for reading in readings}


def _decode(hint: Any, value: Any) -> Any:
    """The value of this type that a part of the file stands for."""
    arguments = get_args(hint)
    if hint is JobName:
        return parse_name(value)
    if NoneType in arguments:
        return None if value is None else _decode(arguments[0], value)
    if get_origin(hint) is tuple:
        hints = arguments[:1] * len(value) if Ellipsis in arguments else arguments
        return tuple(_decode(*pair) for pair in zip(hints, value, strict=True))
    if hasattr(hint, "_fields"):
        return hint(*map(_decode, get_type_hints(hint).values(), value))
    return hint(value)
