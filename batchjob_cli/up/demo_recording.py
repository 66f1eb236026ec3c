"""The recorded cluster of `batchjob up --demo`: five weeks of jobs, their loads and their usage.

The recording is made by `python -m benchmarks.demo`, and is the same each time it is made. Its
first line describes the cluster, each further one a job: its record as it ended, what it used on
each of its nodes, and its usage as measured from the samples that are made of it here. Times in it
are seconds since its beginning. It is placed so that four weeks are past, and is moved by whole
days, so that nights stay nights.
"""

import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from batchjob.quantities.sample import END, JobSample, SampleKey
from batchjob.runtime.json_reader import parse_json
from batchjob.schedulers import records
from batchjob.schedulers.states import JobState
from batchjob_stats_db.measure.job_usage import MeasuredUsage
from batchjob_stats_db.measure.node_usage import GpuUsage, gpu_columns

CLUSTER = "batchjob-demo"
SOURCE = "sacct"  # the jobs look like Slurm's
FILE = "demo.jsonl.gz"
DAY, PAST_DAYS = 86400, 28
MIB = 1 << 20
_SAMPLES = 60  # of a job that had ended when the demo started, on each node
_SHORTEST_INTERVAL_SECONDS = 20.0
INTERVAL_SECONDS = 120.0  # longest between two samples of a job that runs while the demo does
_PRIORITY = 1200
_GRAMS_PER_KWH = 250.0
_PROVIDER = "demo"
_CPU_WATTS, _IDLE_CPU_WATTS = 6.0, 2.0
_GPU_SPAN_WATTS, _IDLE_GPU_WATTS = 320.0, 60.0


class NodeLoad(NamedTuple):
    """What a job, or a whole node, uses at a moment."""

    cores: float
    memory_bytes: float
    gpus: Mapping[int, tuple[float, float]]  # GPU of the node → utilisation (0..1), memory (bytes)


class DemoJob(NamedTuple):
    """A job of the recording; a part of its loads has the same length as the others."""

    record: records.JobRecord  # as it ends
    waits_for: str  # the reason while it is pending; "" for its turn
    loads: Sequence[Mapping[str, Any]]  # of each node; `cores`, `memory`, `gpus`
    usage: Mapping[str, Any]  # empty for a job that never started

    def measured(self, row_id: int) -> MeasuredUsage:
        """Its usage once it has ended; `row_id`: of its row in the database."""
        assert self.record.end_time is not None
        assert self.record.start_time is not None
        seconds = self.record.end_time - self.record.start_time
        gpus = [
            GpuUsage(*each)._replace(observed_seconds=seconds, shared_seconds=0.0, mps_seconds=0.0)
            for each in self.usage["gpus"]
        ]
        values = {**self.usage["values"], **gpu_columns(gpus)}
        return MeasuredUsage(
            row_id, self.usage["samples"], 0, len(self.loads), self.usage["coverage"],
            math.ceil(self.record.end_time), "", values, gpus,
            self.usage["emissions"],
        )  # fmt: skip

    def load_at(self, node_index: int, part: float) -> NodeLoad:
        """The load on one of its nodes after `part` (0..1) of its time."""
        loads = self.loads[node_index]
        number = min(int(part * len(loads["cores"])), len(loads["cores"]) - 1)
        return NodeLoad(
            loads["cores"][number],
            loads["memory"][number] * MIB,
            {
                int(gpu): (percent[number] / 100, memory[number] * MIB)
                for gpu, (percent, memory) in loads["gpus"].items()
            },
        )

    def record_at(self, now: float) -> records.JobRecord:
        """Its record at a time after its submission."""
        last = self.record
        if last.end_time is not None and last.end_time <= now:
            return last
        if last.start_time is not None and last.start_time <= now:
            running, steps = JobState.RUNNING, tuple(_steps_at(last.steps, now))
            return last._replace(state=running, state_word=running, **_AT_END, steps=steps)
        waiting, start = JobState.PENDING, last.start_time
        expected = None if start is None or self.waits_for else math.ceil(start / 600) * 600
        return last._replace(
            state=waiting, state_word=waiting, reason=self.waits_for, priority=_PRIORITY,
            expected_start_time=expected, **_AT_END, **_AT_START,
        )  # fmt: skip

    def sample_count(self, lives: bool) -> int:
        """The number of its samples on a node, more for one that `lives` while the demo runs."""
        seconds = self.record.elapsed_seconds or 0.0
        interval = max(seconds / _SAMPLES, _SHORTEST_INTERVAL_SECONDS)
        return max(math.ceil(seconds / (min(interval, INTERVAL_SECONDS) if lives else interval)), 1)

    def samples(self, node_index: int, count: int) -> Iterator[JobSample]:
        """One sample at its start, and `count` later ones, on one of its nodes."""
        start, share = self.record.start_time, self.record.nodes[node_index]
        assert start is not None
        interval, cpus = (self.record.elapsed_seconds or 0.0) / count, share.cpus or 0.0
        ran_out = self.record.state is JobState.OUT_OF_MEMORY
        cpu = peak = 0.0
        joules: dict[tuple[str, str], float] = {}
        for number in range(count + 1):
            now, seconds = self.load_at(node_index, number / count), interval if number else 0.0
            cpu, peak = cpu + now.cores * seconds, max(peak, now.memory_bytes)
            for key, watts in power_watts(cpus, now).items():
                joules[key] = joules.get(key, 0.0) + watts * seconds
            killed = float(ran_out and number == count)
            values = {
                "cpu_user_seconds": cpu * 0.95, "cpu_system_seconds": cpu * 0.05, "cpus": cpus,
                "cpu_waiting_seconds": cpu * 0.01, "io_waiting_seconds": 0.002 * interval * number,
                "memory_current_bytes": now.memory_bytes, "memory_peak_bytes": peak,
                "memory_working_set_bytes": now.memory_bytes * 0.85,
                "memory_limit_bytes": float(share.memory_bytes or 0),
                "memory_limit_hits": 40 * killed, "oom_kills": killed,
                "memory_swap_bytes": 0.0, "threads": cpus, "threads_peak": cpus, "processes": 4.0,
                "process_io_read_bytes": 4e6 * interval * number,
                "process_io_written_bytes": 1e6 * interval * number,
            }  # fmt: skip
            keyed = {SampleKey(name): value for name, value in values.items()}
            keyed |= {SampleKey("energy_joules", key): value for key, value in joules.items()}
            grams = sum(joules.values()) / 3.6e6 * _GRAMS_PER_KWH
            keyed[SampleKey("emissions_grams", (_PROVIDER,))] = grams
            for gpu, (ratio, memory) in now.gpus.items():
                of = (str(gpu), uuid(share.node, gpu), "")
                keyed[SampleKey("gpu_utilization_ratio", of)] = ratio
                keyed[SampleKey("gpu_memory_bytes", of)] = memory
                keyed[SampleKey("gpu_memory_total_bytes", of)] = 80 * 1024.0 * MIB
                keyed[SampleKey("gpu_power_watts", of)] = gpu_watts(ratio)
            if number == count:
                keyed[END] = start + number * interval
            yield JobSample(start + number * interval, keyed)


_AT_END: Mapping[str, Any] = dict.fromkeys(
    ("end_time", "elapsed_seconds", "exit_code", "exit_signal", "user_cpu_seconds",
     "system_cpu_seconds", "cpu_seconds", "peak_memory_bytes")
)  # fmt: skip
_AT_START: Mapping[str, Any] = dict.fromkeys(
    ("start_time", "allocated_cpus", "allocated_memory_bytes", "allocated_gpus", "allocated_nodes")
) | {"node_list": "", "nodes": (), "steps": ()}


def _steps_at(steps: Sequence[records.StepRecord], now: float) -> Iterator[records.StepRecord]:
    """The steps that have started by a time, in their state at that time."""
    for step in steps:
        if step.end_time is not None and step.end_time <= now:
            yield step
        elif step.start_time is not None and step.start_time <= now:
            running = JobState.RUNNING
            ahead: dict[str, Any] = dict.fromkeys(
                ("end_time", "elapsed_seconds", "exit_code", "exit_signal", "cpu_seconds",
                 "user_cpu_seconds", "system_cpu_seconds", "peak_task_memory_bytes")
            )  # fmt: skip
            yield step._replace(state=running, state_word=running, **ahead)


class Recording(NamedTuple):
    """The recording, placed in time."""

    jobs: Sequence[DemoJob]  # by submission
    nodes: Mapping[str, Mapping[str, Any]]  # name → `cpus`, `memory_gib`, `gpus`, `state` ...
    associations: records.Associations
    scripts: Mapping[str, str]  # by name of job


def read(now: float) -> Recording:
    """The recording, four weeks of which are past at a time (epoch seconds)."""
    begin = int(now // DAY - PAST_DAYS) * DAY
    text = gzip.decompress(files(__package__).joinpath(FILE).read_bytes())
    header, *lines = map(parse_json, text.splitlines())
    jobs = [job_of_line(line, begin) for line in lines]
    members = [
        records.Association(CLUSTER, account, user, records.Role.MEMBER)
        for account, user in header["members"]
    ]
    accounts = [records.Account(CLUSTER, *each) for each in header["accounts"]]
    associations = records.Associations(tuple(members), (), tuple(accounts))
    return Recording(jobs, header["nodes"], associations, header["scripts"])


def job_of_line(line: Mapping[str, Any], begin: int) -> DemoJob:
    """A job of the recording, which begins at a time (epoch seconds)."""
    values = _placed(line["record"], begin)
    nodes = tuple(records.NodeShare(*each) for each in values.pop("nodes", ()))
    steps = tuple(records.StepRecord(**_placed(step, begin)) for step in values.pop("steps", ()))
    record = records.JobRecord(cluster=CLUSTER, source=SOURCE, nodes=nodes, steps=steps, **values)
    return DemoJob(record, line.get("waits_for", ""), line["loads"], line.get("usage", {}))


def _placed(values: Mapping[str, Any], begin: int) -> dict[str, Any]:
    """The fields of a record, with times since the epoch."""
    moved = {
        name: value + begin if name.endswith("_time") else value for name, value in values.items()
    }
    return moved | {"state": JobState(values["state"]), "state_word": values["state"]}


def power_watts(cpus: float, load: NodeLoad) -> dict[tuple[str, str], float]:
    """Power of a job by component and kind."""
    watts = {
        ("host", "active"): (_CPU_WATTS - _IDLE_CPU_WATTS) * load.cores,
        ("host", "idle"): _IDLE_CPU_WATTS * cpus,
    }
    if load.gpus:
        watts["gpu", "active"] = _GPU_SPAN_WATTS * sum(busy for busy, _ in load.gpus.values())
        watts["gpu", "idle"] = _IDLE_GPU_WATTS * len(load.gpus)
    return watts


def gpu_watts(utilization: float) -> float:
    """Power of a GPU of this utilisation (0..1)."""
    return _IDLE_GPU_WATTS + _GPU_SPAN_WATTS * utilization


def uuid(node: str, gpu: int) -> str:
    """The UUID of a GPU of a node."""
    return f"GPU-{node.encode().hex():0>8}-{gpu:04x}-4000-8000-000000000000"
