"""Slurm's options: sbatch(1), whose command line overrides the script.

Of --mem, --mem-per-cpu and --mem-per-gpu it accepts one only, command line and script together.
"""

import math
import re

from batchjob.runtime.formatting import format_clock
from batchjob.schedulers.submission import NextRequest, Submission, Values, option

_NAMES = {
    "cpus-per-task": "c", "ntasks": "n", "ntasks-per-node": "", "mem": "", "mem-per-cpu": "",
    "mem-per-gpu": "", "gpus": "G", "gpus-per-node": "", "gres": "", "time": "t",
}  # fmt: skip
# Options of sbatch and srun without a value, or whose value follows `=`; getopt(3).
_LONG_FLAGS = (
    "bcast bell compress contiguous debugger-test disable-status exact exclusive external "
    "get-user-env help hold ignore-pbs immediate interactive kill-on-bad-exit label multi-prog "
    "nice no-allocate no-bell no-kill no-requeue oom-kill-step overcommit overlap oversubscribe "
    "parallel-debug parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue "
    "resv-ports send-libs share spread-job stepmgr test-only unbuffered usage use-min-nodes "
    "verbose version wait wait-for-children whole x11"
)
_FLAGS = frozenset(
    (*(f"--{name}" for name in _LONG_FLAGS.split()), *(f"-{each}" for each in "EHIKOQWXZhklsuvV"))
)
_GPUS = re.compile(r"((?:gpu:)?(?:[\w.-]+:)?)(\d+)")  # 4, a100:4, gpu:4, gpu:a100:4


def next_values(known: Values, request: NextRequest) -> dict[str, str]:
    """CPUs and GPUs change where it is known how they were requested, by tasks or by node."""
    values = _cpus(known, request) if request.cpus is not None else {}
    gpus = _gpus(known, request) if request.gpus is not None else {}
    cpus = request.cpus if values else request.held_cpus
    values |= gpus
    memory = request.memory_mib or (request.held_memory_mib if values else None)
    if memory:
        values |= _memory(known, memory, cpus, request.gpus if gpus else None)
    if request.seconds is not None:
        values["time"] = format_clock(request.seconds)
    return values


def _cpus(known: Values, request: NextRequest) -> dict[str, str]:
    cpus, nodes = request.cpus or 1, request.nodes
    counts = {name: _number(known.get(name, "")) for name in _NAMES}
    tasks = counts["ntasks-per-node"] or (counts["ntasks"] or nodes) / nodes
    if counts["cpus-per-task"]:
        return {"cpus-per-task": str(math.ceil(cpus / tasks))}
    if counts["ntasks-per-node"]:
        return {"ntasks-per-node": str(cpus)}
    return {"ntasks": str(cpus * nodes)} if counts["ntasks"] else {}


def _gpus(known: Values, request: NextRequest) -> dict[str, str]:
    for name in ("gpus", "gpus-per-node", "gres"):
        if match := _GPUS.fullmatch(known.get(name, "")):
            count = (request.gpus or 0) * (request.nodes if name == "gpus" else 1)
            return {name: f"{match[1]}{count}"}
    return {}


def _memory(known: Values, mib: int, cpus: int | None, gpus: int | None) -> dict[str, str]:
    """In the unit in which it was requested; none if its number of units is not known."""
    if "mem-per-cpu" in known:
        return {"mem-per-cpu": f"{math.ceil(mib / cpus)}M"} if cpus else {}
    if "mem-per-gpu" in known:
        held = next(
            (_GPUS.fullmatch(known[n]) for n in ("gpus-per-node", "gres") if n in known), None
        )
        count = gpus if gpus is not None else int(held[2]) if held else 0
        return {"mem-per-gpu": f"{math.ceil(mib / count)}M"} if count else {}
    return {"mem": f"{mib}M"}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


SUBMISSION = Submission(
    ("sbatch", "srun", "salloc"),
    "#SBATCH",
    {name: option(name, short) for name, short in _NAMES.items()},
    {name: f"--{name}={{}}" for name in _NAMES},
    next_values,
    option("job-name", "J"),
    _FLAGS,
)
