"""Saves the ledger to disk, so that a restarted exporter continues where it stopped.

Prometheus takes a counter that decreases for one that restarted from 0 and counts it twice, so the
file is written before its numbers are exposed. Totals and readings are valid only for the boot in
which they were written; the learned idle power remains valid.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from collectors.energy.ledger import (
    Component,
    Consumer,
    Kind,
    LearnedIdlePower,
    Ledger,
    LedgerEntry,
)
from collectors.energy.split import NodeSnapshot
from collectors.jobs.view import JobCpu, parse_name
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading

FILE = "energy.json"


def restore(saved: Mapping[str, Any], of_boot: bool, meter: str, ledger: Ledger) -> bool:
    """Fill a new ledger; True if its totals continue, False if they restart.

    `of_boot`: it is of this boot. Raises ValueError for a damaged one, after which the
    ledger must be discarded.
    """
    try:
        if saved["meter"] == meter:
            ledger.idle.learned = _parse_learned_power(saved["idle"])
        for uuid, learned in saved["gpu_idle"].items():
            ledger.gpu_idle[uuid].learned = _parse_learned_power(learned)
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
        "since": None if ledger.last_snapshot is None else _snapshot_document(ledger.last_snapshot),
        "gpus_since": _gpu_rows(ledger.last_gpu_readings),
    }


def _restore_totals(document: Mapping[str, Any], ledger: Ledger) -> None:
    for row in document["jobs"]:
        job = LedgerEntry(float(row["seen_at"]))
        for component, kind, joules in row["joules"]:
            job.joules[cast("Component", component), cast("Kind", kind)] = float(joules)
        job.grams.update({str(provider): float(grams) for provider, grams in row["grams"].items()})
        ledger.jobs[parse_name(row["key"])] = job
    for component, consumer, joules in document["node"]:
        ledger.node[cast("Component", component), cast("Consumer", consumer)] = float(joules)
    ledger.metered_joules = float(document["metered_joules"])
    ledger.overdrawn_joules = float(document["overdrawn_joules"])
    ledger.seconds_without_data = float(document["seconds_without_data"])
    ledger.gpu_seconds_without_data = float(document["gpu_seconds_without_data"])
    ledger.accounted_until = _optional_float(document["settled_until"])
    ledger.last_snapshot = None if document["since"] is None else _parse_snapshot(document["since"])
    ledger.last_gpu_readings = _parse_gpus(document["gpus_since"])


def _rows(sums: Iterable[tuple[tuple[str, str], float]]) -> list[tuple[str, str, float]]:
    return [(*names, joules) for names, joules in sums]


def _snapshot_document(snapshot: NodeSnapshot) -> dict[str, Any]:
    return {
        "at": snapshot.at,
        "epoch": snapshot.epoch,
        "meter": snapshot.meter,
        "processors": (snapshot.busy_seconds, snapshot.cpus),
        "jobs": list(snapshot.jobs.values()),
        "gpus": _gpu_rows(snapshot.gpus),
    }


def _parse_snapshot(document: Mapping[str, Any]) -> NodeSnapshot:
    busy_seconds, cpus = document["processors"]
    jobs = [
        JobCpu(parse_name(name), *map(_optional_float, numbers))
        for name, *numbers in document["jobs"]
    ]
    return NodeSnapshot(
        float(document["at"]),
        float(document["epoch"]),
        None if document["meter"] is None else _parse_reading(document["meter"]),
        float(busy_seconds),
        int(cpus),
        {job.name: job for job in jobs},
        _parse_gpus(document["gpus"]),
    )


def _parse_reading(row: list[Any]) -> MeterReading:
    at, joules, watts, series = row
    return MeterReading(float(at), _optional_float(joules), _optional_float(watts), int(series))


def _gpu_rows(gpus: Mapping[str, GpuEnergyReading]) -> list[tuple[Any, ...]]:
    """Without the power, which is of use only for the interval that a reading ends."""
    return [each[:5] for each in gpus.values()]


def _parse_gpus(rows: list[Any]) -> dict[str, GpuEnergyReading]:
    readings = [
        GpuEnergyReading(
            str(uuid), float(at), float(joules), int(series), tuple(map(_parse_share, shares))
        )
        for uuid, at, joules, series, shares in rows
    ]
    return {reading.uuid: reading for reading in readings}


def _parse_share(row: list[Any]) -> GpuEnergyShare:
    job, share, activity = row
    return GpuEnergyShare(parse_name(job), float(share), _optional_float(activity))


def _parse_learned_power(row: list[Any] | None) -> LearnedIdlePower | None:
    return None if row is None else (float(row[0]), float(row[1]))


def _optional_float(value: Any) -> float | None:
    return None if value is None else float(value)
