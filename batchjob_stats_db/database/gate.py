"""The gate between every source and the database: what a number may be, and what is refused.

Schedulers, nodes, sensors and people's own records are wrong now and then, and some lie. The same
rules hold for all of them. A value that breaks one is left out, as if its source did not state it;
a record whose times break one is set aside as a whole. Both are listed in `quarantine` with the
rule. What is unlikely, but possible, is stored with a caveat.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from batchjob.schedulers.reallocation import not_known
from batchjob.schedulers.records import (
    RAW_LIMIT,
    JobRecord,
    NodeShare,
    QuarantinedRow,
    Reallocation,
    StepRecord,
)
from batchjob_stats_db.days import DAY, LONGEST_RUN_SECONDS

Measured = TypeVar("Measured", JobRecord, StepRecord)
Part = TypeVar("Part", JobRecord, StepRecord, NodeShare)

FIRST_TIME = 631_152_000
"""1990-01-01: older than any scheduler whose records are read."""
_CLOCK_TOLERANCE_SECONDS = DAY  # clocks of a cluster differ by less
LOGGED_LATE_SECONDS = 60  # of a change as the job ends
_PLANNED_SECONDS = 10 * 366 * DAY  # users ask for begin times that far ahead
MAX_NODE_WATTS = 20_000.0
"""More than any node draws: servers with eight GPUs of 2025 take up to 15 kW."""
_METER_SECONDS = 60  # a meter's last reading before the start may be that old
MAX_PARTS = 100_000
"""Nodes of a job, and steps of a job."""
MAX_KEY_LENGTH = 255
"""Characters of a text that is part of an index; PostgreSQL indexes less than 2,704 bytes."""
_IDLE_SECONDS = 60  # seconds in which a job may really have used next to no CPU time

RULES: Mapping[str, str] = {
    "unreadable": "the text of a record, or of a field, is not in its source's format",
    "unstorable": "no column of the database can hold the value",
    "forged": "a run of another user has this id",
    "range": "not a finite number within the limits of its quantity",
    "time": "before 1990, more than a day ahead, or ten years for a time that is planned",
    "duration": "the run is longer than ten years",
    "parts": f"a job of more than {MAX_PARTS} nodes or steps, or of more GPUs than a node can have",
    "text": f"a name of more than {MAX_KEY_LENGTH} characters",
    "lost cpu": "no CPU time at all in more than a minute, though memory or IO was counted",
    "energy": f"more than {MAX_NODE_WATTS / 1000:g} kW on each node for all of the time",
    "node": "measured on a node that the job was not allocated",
}
"""Each rule with what breaks it."""

Refusal = tuple[str, str]
"""A source and the rule that it broke."""


_Range = tuple[float, float]  # the least and the largest value

_COUNT = (0, 2**40)
_DURATION = (0, 1e15)  # also CPU seconds of a million cores over decades
# By the whole name of a column, then by the end of it; everything else is a count.
_RANGES: Mapping[str, _Range] = {
    "elapsed_seconds": (0, LONGEST_RUN_SECONDS),
    "suspended_seconds": (0, LONGEST_RUN_SECONDS),
    "time_limit_seconds": (0, 2**40),
    "resized_cpu_seconds": (-1e15, 1e15),  # negative if it held less before
    "resized_gpu_seconds": (-1e15, 1e15),
    "resized_memory_byte_seconds": (-1e24, 1e24),
    "coverage": (0, 1.05),
    "uid": (0, 2**32 - 1),
    "priority": (-(2**53), 2**53),
    "exit_code": (-(2**31), 2**32),
    "derived_exit_code": (-(2**31), 2**32),
}
_RANGES_BY_UNIT: Mapping[str, _Range] = {
    "_seconds": _DURATION,
    "_bytes": (0, 2**62),
    "_joules": (0, 1e15),
    "grams": (0, 1e12),
    "_ratio": (0, 1.05),  # a mean of samples that were rounded
}

_KEY_TIMES = ("submit_time", "start_time", "end_time")
_SECONDS_AHEAD = dict.fromkeys(("expected_start_time", "eligible_time"), _PLANNED_SECONDS)


def limits(name: str) -> _Range:
    """The least and the largest value of a number, by the name of its column."""
    for unit, limit in _RANGES_BY_UNIT.items():
        if name.endswith(unit):
            return _RANGES.get(name, limit)
    return _RANGES.get(name, _COUNT)


def broken_rule(
    name: str, value: float, nodes: float | None = None, seconds: float | None = None
) -> str:
    """The rule that a number breaks; "" if none.

    `name` is its column; `nodes` and `seconds` are what the job was allocated, if known.
    """
    low, high = limits(name)
    if not low <= value <= high:  # not true of NaN
        return "range"
    if name.endswith("_joules") and nodes and seconds is not None:
        return "energy" if value > _max_joules(nodes, seconds) else ""
    return ""


def _max_joules(nodes: float, seconds: float) -> float:
    return nodes * (max(seconds, 0.0) + _METER_SECONDS) * MAX_NODE_WATTS


def admit(
    records: Iterable[JobRecord], now: float
) -> tuple[list[JobRecord], list[QuarantinedRow], int]:
    """The records without the values that break a rule, what was refused, and set aside as a whole.

    The last is the number of records of which nothing passed.
    """
    passed: list[JobRecord] = []
    refused: list[QuarantinedRow] = []
    set_aside = 0
    for record in records:
        if broken := _impossible_record(record, now):
            refused.append(_refused_row(record, *broken, repr(record)[:RAW_LIMIT]))
            set_aside += 1
            continue
        admitted, found = _without_bad_values(record, now)
        passed.append(admitted)
        broken_rules = Counter(rule for rule, _, _ in found)
        for rule, what, value in found:
            if not (number := broken_rules.pop(rule, 0)):
                continue  # a record costs one row for each rule, whatever its number of nodes
            # Not the value, which grows from poll to poll: the same is listed once.
            raw = f"job {record.jobid}: {what}"
            more = f", and {number - 1} more" if number > 1 else ""
            refused.append(_refused_row(record, rule, f"{what} is {value!r:.100}{more}", raw))
    return passed, refused, set_aside


def _refused_row(record: JobRecord, rule: str, reason: str, raw: str) -> QuarantinedRow:
    return QuarantinedRow(record.source, reason, raw, rule)


def _impossible_record(record: JobRecord, now: float) -> tuple[str, str] | None:
    """The rule that sets a record aside, and how: by its key, its times or its size."""
    for name in _KEY_TIMES:
        at = getattr(record, name)
        if at is not None and not FIRST_TIME <= at <= now + _CLOCK_TOLERANCE_SECONDS:
            return "time", f"{name} is {at!r:.100}"
    seconds = _run_seconds(record)
    if seconds is not None and seconds > LONGEST_RUN_SECONDS:
        return "duration", f"it ran for {seconds!r:.100} s"
    if not 0 <= record.run <= _COUNT[1]:
        return "range", f"run is {record.run!r:.100}"
    if len(record.jobid) > MAX_KEY_LENGTH:
        return "text", f"jobid has {len(record.jobid)} characters"
    parts = max(len(record.nodes), len(record.steps), len(record.reallocations))
    return ("parts", f"it has {parts}") if parts > MAX_PARTS else None


def _run_seconds(record: JobRecord) -> float | None:
    """From the start to the end, suspensions included; None if it is not known."""
    if record.start_time is None or record.end_time is None:
        return record.elapsed_seconds
    return record.end_time - record.start_time


_Checks = tuple[list[tuple[int, str, float, float]], list[tuple[int, str, float]], list[Any]]
"""What is checked of a kind of record, each with its index and name: the numbers with the least and
largest value, the times with the seconds that they may be ahead, and the texts."""


def _checks(record: type[NamedTuple], texts: Iterable[str]) -> _Checks:
    numbers: list[tuple[int, str, float, float]] = []
    times: list[tuple[int, str, float]] = []
    for index, (name, hint) in enumerate(get_type_hints(record).items()):
        if name.endswith("_time"):
            times.append((index, name, _SECONDS_AHEAD.get(name, _CLOCK_TOLERANCE_SECONDS)))
        elif {int, float} & {hint, *get_args(hint)}:
            numbers.append((index, name, *limits(name)))
    at = record._fields.index
    return numbers, times, [(at(name), name) for name in texts]


_OF_JOBS = _checks(JobRecord, ("user", "account", "partition", "array_jobid", "het_jobid"))
_OF_STEPS = _checks(StepRecord, ("step",))
_OF_NODES = _checks(NodeShare, ("node",))

_Refusals = list[tuple[str, str, Any]]
"""The rule, the name of the value and the value."""


def _without_bad_values(record: JobRecord, now: float) -> tuple[JobRecord, _Refusals]:
    seconds, nodes = _run_seconds(record), record.allocated_nodes or len(record.nodes)
    most = _max_joules(nodes, seconds) if nodes and seconds is not None else inf
    used = bool(record.peak_memory_bytes) or any(map(_has_used, record.steps))
    admitted, refused = _admit(record, _OF_JOBS, now)
    admitted, impossible = _without_impossible(admitted, most, used)
    refused += impossible
    for name, held in _HELD.items():
        if (resized := getattr(admitted, name)) is None:
            continue
        is_possible = resized >= -(getattr(admitted, held) or 0) * (seconds or 0)
        # A float, since an integer may be longer than those of a database.
        believed: dict[str, Any] = {name: float(resized) if is_possible else None}
        admitted = admitted._replace(**believed)
        if not is_possible:
            refused.append(("range", name, resized))
    broken = {each: _broken_change(each, record, now) for each in record.reallocations}
    if any(broken.values()):  # what the job held is the sum over all of them
        record, admitted = record._replace(nodes=()), not_known(admitted)
        refused += [(rule, "reallocation", each) for each, rule in broken.items() if rule]
    nodes_left, steps_left = [], []
    for node in record.nodes:
        share, found = _admit(node, _OF_NODES, now)
        nodes_left.append(share)
        refused += [(rule, f"node {share.node}: {name}", value) for rule, name, value in found]
    for given in record.steps:
        step, found = _admit(given, _OF_STEPS, now)
        step, impossible = _without_impossible(step, most, _has_used(step))
        if step.step != "extern" and any(rule == "lost cpu" for rule, _, _ in impossible):
            # The job's CPU time is a sum over its steps with tasks, of which `extern` has none.
            admitted = admitted._replace(**_NO_CPU_TIME)
        steps_left.append(step)
        found += impossible
        refused += [(rule, f"step {step.step}: {name}", value) for rule, name, value in found]
    if refused:
        admitted = admitted._replace(nodes=tuple(nodes_left), steps=tuple(steps_left))
    return admitted, refused


def _admit(part: Part, checks: _Checks, now: float) -> tuple[Part, _Refusals]:
    """The part without what is out of range; a text that is too long is cut off."""
    refused: _Refusals = []
    values: Sequence[Any] = part
    numbers, times, texts = checks
    for index, name, low, high in numbers:
        value = values[index]
        if value is not None and not low <= value <= high:  # not true of NaN
            refused.append(("range", name, value))
    for index, name, ahead in times:
        at = values[index]
        if at is not None and not FIRST_TIME <= at <= now + ahead:
            refused.append(("time", name, at))
    replaced: dict[str, Any] = {name: None for _, name, _ in refused}
    for index, name in texts:
        text = values[index]
        if len(text) > MAX_KEY_LENGTH:
            refused.append(("text", name, text))
            replaced[name] = text[:MAX_KEY_LENGTH]
    return (part._replace(**replaced) if replaced else part), refused


_HELD = {
    "resized_cpu_seconds": "allocated_cpus",
    "resized_gpu_seconds": "allocated_gpus",
    "resized_memory_byte_seconds": "allocated_memory_bytes",
}
"""What a job held beyond the other column times its run time; together not less than nothing."""


def _broken_change(change: Reallocation, record: JobRecord, now: float) -> str:
    """The rule that a change of a job's allocation breaks; "" if none."""
    begin, ended = record.start_time or FIRST_TIME, record.end_time
    end = now + _CLOCK_TOLERANCE_SECONDS if ended is None else ended + LOGGED_LATE_SECONDS
    if not begin <= change.until_time <= end:
        return "time"
    most = {name: limits(name)[1] for name in Reallocation._fields[1:]}
    amounts = zip(most.values(), change[1:], strict=True)
    possible = all(amount is None or abs(amount) <= high for high, amount in amounts)
    return "" if possible else "range"


def _has_used(step: StepRecord) -> bool:
    return bool(step.memory_bytes or step.read_bytes or step.written_bytes or step.cpu_seconds)


_CPU_SECONDS = ("user_cpu_seconds", "system_cpu_seconds", "cpu_seconds")
_NO_CPU_TIME: Mapping[str, Any] = dict.fromkeys(_CPU_SECONDS)


def _without_impossible(
    part: Measured, max_joules: float, has_used: bool
) -> tuple[Measured, _Refusals]:
    """A job or step without what its time and allocation rule out.

    Slurm 25.05 writes a CPU time of zero for jobs whose steps counted hours; and no process uses
    memory, or reads and writes, without any.
    """
    refused: _Refusals = []
    if part.energy_joules and part.energy_joules > max_joules:
        refused.append(("energy", "energy_joules", part.energy_joules))
    if has_used and part.elapsed_seconds and part.elapsed_seconds > _IDLE_SECONDS:
        times = [(name, getattr(part, name)) for name in _CPU_SECONDS]
        known = [(name, value) for name, value in times if value is not None]
        if not any(value for _, value in known):
            refused += [("lost cpu", name, value) for name, value in known]
    unknown: dict[str, Any] = dict.fromkeys(name for _, name, _ in refused)
    return (part._replace(**unknown) if unknown else part), refused
