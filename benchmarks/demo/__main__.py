"""Writes the recording of `batchjob up --demo`; it is the same each time.

python -m benchmarks.demo [FILE]
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchjob.quantities.sample import SampleHeader
from batchjob.schedulers.states import JobState
from batchjob_cli.up import demo_recording
from batchjob_cli.up.demo_recording import CLUSTER, DemoJob
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import measure_isolated
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from benchmarks.demo.loads import loads
from benchmarks.demo.recipes import (
    ACCOUNT_CPU_LIMITS,
    ALL,
    NODES,
    USERS,
    Recipe,
    script,
    submit_options,
)
from benchmarks.demo.schedule import Job, jobs

_GIB = 1 << 30
_SEGMENTATION_FAULT, _BUS_ERROR = 128 + 11, 128 + 7  # exit status in a shell
_DIGITS = 6  # significant, of measured values


def header() -> dict[str, Any]:
    """The first line: the cluster, and who works on it."""
    accounts = sorted({recipe.account for recipe in ALL})
    limits = {name: f"GrpTRES=cpu={cpus}" for name, cpus in ACCOUNT_CPU_LIMITS.items()}
    return {
        "nodes": NODES,
        "members": sorted({(recipe.account, recipe.user) for recipe in ALL}),
        "accounts": [("root",), *((name, "root", limits.get(name, "")) for name in accounts)],
        "scripts": {recipe.name: script(recipe) for recipe in ALL},
    }


def unmeasured_lines(done: Sequence[Job]) -> Iterator[dict[str, Any]]:
    """The lines of the jobs, without their usage."""
    for job in done:
        record = {name: value for name, value in _record(job).items() if value not in (None, "")}
        waits_for = {"waits_for": job.waits_for} if job.waits_for else {}
        yield {"record": record, **waits_for, "loads": loads(job)}


def _record(job: Job) -> dict[str, Any]:
    recipe, memory, started = job.recipe, job.memory_gib * _GIB, job.start is not None
    gpus, cpus = recipe.gpus * recipe.nodes or None, recipe.cpus * recipe.nodes
    assert job.end is not None
    array = job.array
    stdout = f"{array.jobid}_{job.index}" if array else str(job.jobid)
    return {
        "jobid": str(job.jobid), "submit_time": job.submit, "state": job.state.value,
        "user": recipe.user, "uid": 5000 + USERS.index(recipe.user), "account": recipe.account,
        "partition": recipe.partition, "qos": recipe.qos, "name": recipe.name,
        "start_time": job.start, "end_time": job.end, "eligible_time": _eligible_time(job),
        "elapsed_seconds": job.seconds if started else 0,
        "time_limit_seconds": job.limit_seconds, **_exit(job),
        "reason": "" if started else job.waits_for, "requested_cpus": cpus,
        "requested_gpus": gpus, "requested_memory_bytes": memory * recipe.nodes,
        "requested_nodes": recipe.nodes, "allocated_cpus": cpus if started else None,
        "allocated_memory_bytes": memory * recipe.nodes if started else None,
        "allocated_gpus": gpus if started else None,
        "allocated_nodes": recipe.nodes if started else None, "node_list": ",".join(job.nodes),
        "array_jobid": str(array.jobid) if array else "", "array_index": job.index,
        "dependencies": f"afterok:{job.after.jobid}" if job.after else "",
        "submit_line": " ".join(
            ["sbatch", *submit_options(recipe, job.memory_gib), f"{recipe.name}.sh"]
        ),
        "work_dir": f"/home/{recipe.user}/{recipe.name}",
        "stdout_path": f"/home/{recipe.user}/{recipe.name}/slurm-{stdout}.out",
        "nodes": [(node, recipe.cpus, memory, recipe.gpus or None) for node in job.nodes],
        "steps": list(_steps(job)) or None,
    }  # fmt: skip


def _eligible_time(job: Job) -> int | None:
    if job.after is None:
        return job.submit
    return max(job.submit, job.after.end or 0) if job.start is not None else None


def _exit(job: Job) -> dict[str, int | None]:
    if job.state is JobState.FAILED:
        on_bad_node = job.recipe.end is not JobState.FAILED
        return {"exit_code": _BUS_ERROR if on_bad_node else _SEGMENTATION_FAULT}
    if job.state is JobState.OUT_OF_MEMORY:
        return {"exit_code": 0, "exit_signal": 9}
    return {"exit_code": 0}


def _steps(job: Job) -> Iterator[dict[str, Any]]:
    """The steps as sacct has them: the script, what Slurm starts on each node, and each srun."""
    if not job.recipe.steps or job.start is None or job.end is None:
        return
    recipe: Recipe = job.recipe
    yield _step(job, "batch", "batch", job.start, job.end, 1)
    yield _step(job, "extern", "extern", job.start, job.end, recipe.nodes)
    begin = job.start + 5
    for number, name in enumerate(recipe.steps):
        last = number == len(recipe.steps) - 1
        end = job.end if last else min(begin + 300, job.end)
        yield _step(job, str(number), name, begin, end, recipe.nodes, failed=last)
        begin = end
        if end >= job.end:
            return


def _step(
    job: Job, step: str, name: str, start: int, end: int, nodes: int, failed: bool = True
) -> dict[str, Any]:
    state = job.state if failed and name != "extern" else JobState.COMPLETED
    tasks = nodes if name in ("batch", "extern") else nodes * job.recipe.cpus
    return {
        "step": step, "state": state.value, "name": name, "start_time": start, "end_time": end,
        "elapsed_seconds": end - start, "nodes": nodes, "tasks": tasks,
        "cpus": job.recipe.cpus * nodes, "node_list": ",".join(job.nodes[:nodes]),
        **(_exit(job) if state is job.state else {"exit_code": 0}),
    }  # fmt: skip


def usage(job: DemoJob, samples: Path) -> dict[str, Any]:
    """The usage of a job, as the product measures it from the job's samples."""
    record, count = job.record, job.sample_count(lives=False)
    start, end = int(record.start_time or 0), int(record.end_time or 0)
    interval = (end - start) / count
    for index, share in enumerate(record.nodes):
        header = SampleHeader("slurm", record.jobid, record.user, share.node, interval)
        writer = Writer(folder_of(samples, record.jobid), header, start)
        for sample in job.samples(index, count):
            writer.write(sample)
        writer.close()
    window = JobWindow(CLUSTER, record.jobid, start, end, end=end, nodes=len(record.nodes))
    target = JobToMeasure(
        0, CLUSTER, record.jobid, record.user, record.uid, start, end, record.allocated_nodes,
        int(record.allocated_cpus or 0), window,
    )  # fmt: skip
    usages, _ = measure_isolated(SampleHistory(samples), [target], interval)
    (measured,) = usages.values()
    assert not measured.caveats, (record, measured.caveats)
    return {
        "samples": measured.samples, "coverage": measured.coverage,
        "values": {name: _rounded(value) for name, value in measured.values.items()},
        "gpus": [
            [_rounded(value) if isinstance(value, float) else value for value in gpu]
            for gpu in measured.devices
        ],
        "emissions": {name: _rounded(value) for name, value in measured.emissions.items()},
    }  # fmt: skip


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")


def write(path: Path) -> None:
    """Write the recording."""
    lines: list[Mapping[str, Any]] = list(unmeasured_lines(jobs()))
    with (
        tempfile.TemporaryDirectory() as samples,
        path.open("wb") as file,
        # No name and no time in the file, so that its bytes are the same each time.
        gzip.GzipFile("", "wb", 9, file, mtime=0) as out,
    ):
        out.write(_encoded(header()))
        for line in lines:
            job = demo_recording.job_of_line(line, 0)
            measured = {"usage": usage(job, Path(samples))} if line["loads"] else {}
            out.write(_encoded({**line, **measured}))


def _encoded(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    default = Path(demo_recording.__file__).with_name(demo_recording.FILE)
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
