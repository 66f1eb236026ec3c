"""PBS's and Torque's options: qsub(1B), whose command line overrides the script.

`-l select=` and `-l mem=` exclude one another, so memory is requested as the job requested its
CPUs: in the chunks, or for the whole job.
"""

import math
import re

from batchjob.runtime.formatting import format_clock
from batchjob.schedulers.submission import NextRequest, Submission, Values

_RESOURCES = ("select", "nodes", "ncpus", "ngpus", "mem", "walltime")
_CHUNKS = re.compile(r"(?:(\d+):)?([^+]+)")


def next_values(known: Values, request: NextRequest) -> dict[str, str]:
    """Only requests with one kind of chunk are changed."""
    values = {} if request.seconds is None else {"walltime": format_clock(request.seconds)}
    form = "select" if "select" in known else "nodes" if "nodes" in known else ""
    mib = request.memory_mib
    if form == "select":
        if match := _CHUNKS.fullmatch(known["select"]):
            per_chunk = int(match[1] or 1) / request.nodes  # chunks of each node
            amounts = {
                "ncpus": request.cpus and math.ceil(request.cpus / per_chunk),
                "ngpus": request.gpus and math.ceil(request.gpus / per_chunk),
                "mem": mib and f"{math.ceil(mib / per_chunk)}mb",
            }
            values["select"] = _with_amounts(known["select"], amounts)
        return {name: value for name, value in values.items() if value != known.get(name)}
    if form == "nodes" and _CHUNKS.fullmatch(known["nodes"]):
        amounts = {"ppn": request.cpus, "gpus": request.gpus, "mem": None}
        values["nodes"] = _with_amounts(known["nodes"], amounts)
    else:
        whole = {"ncpus": request.cpus, "ngpus": request.gpus}
        values |= {
            name: str(amount * request.nodes)
            for name, amount in whole.items()
            if amount is not None and name in known
        }
    if mib:
        values["mem"] = f"{mib * request.nodes}mb"
    return {name: value for name, value in values.items() if value != known.get(name)}


def _with_amounts(chunk: str, amounts: dict[str, int | str | None]) -> str:
    for name, amount in amounts.items():
        pattern = re.compile(rf"(?<=:){name}=[^:]*")
        if amount is not None and (pattern.search(chunk) or name == "mem"):
            part = f"{name}={amount}"
            chunk = pattern.sub(part, chunk) if pattern.search(chunk) else f"{chunk}:{part}"
    return chunk


SUBMISSION = Submission(
    ("qsub",),
    "#PBS",
    {name: re.compile(rf"(?<![\w:]){name}=([^,\s]+)") for name in _RESOURCES},
    {name: f"-l {name}={{}}" for name in _RESOURCES},
    next_values,
    re.compile(r"(?<!\S)-N\s*(\S+)"),
    frozenset(("-f", "-h", "-I", "-V", "-X", "-z")),
    lambda text: f"nodes={text}" if "ppn=" in text else f"select={text}" if text else "",
)
