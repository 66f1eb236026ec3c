"""LSF's options: bsub(1). Its records have the command of a job, not the options of bsub."""

import re

from batchjob.schedulers.submission import NextRequest, Submission, Values


def next_values(_: Values, request: NextRequest) -> dict[str, str]:
    """Slots are those of all nodes; time is in hours and minutes."""
    values = {}
    if request.cpus is not None:
        values["n"] = str(request.cpus * request.nodes)
    if request.gpus is not None:
        values["gpu"] = f"num={request.gpus}"
    if request.memory_mib:
        values["M"] = f"{request.memory_mib}MB"
    if request.seconds is not None:
        minutes = -(-request.seconds // 60)
        values["W"] = f"{minutes // 60}:{minutes % 60:02}"
    return values


SUBMISSION = Submission(
    ("bsub",),
    "#BSUB",
    {
        **{name: re.compile(rf"(?<!\S)-{name}\s+(\S+)") for name in "nMW"},
        "gpu": re.compile(r"(?<!\S)-gpu\s+\"?(num=\d+)"),
    },
    {**{name: f"-{name} {{}}" for name in "nMW"}, "gpu": '-gpu "{}"'},
    next_values,
    re.compile(r"(?<!\S)-J\s+\"?([^\s\"\[]+)"),
)
