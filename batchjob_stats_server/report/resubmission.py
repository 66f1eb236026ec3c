"""A job's submit line with the resources that its runs needed, and what that saves.

For Slurm only, where options on the command line override those in the script.
"""

from collections.abc import Sequence

from batchjob.judgements import WORTHWHILE_REDUCTION
from batchjob.runtime.formatting import format_clock
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report.conditions import FactValues
from batchjob_stats_server.report.model import ReportInput, Resubmission, Row

MIN_EARLIER_RUNS = 3  # in addition to the job itself; with fewer, one outlier would decide
_COMMANDS = ("sbatch", "srun", "salloc")
_MEMORY_OPTIONS = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
_TIME_OPTIONS = ("--time", "-t")
# Options of sbatch without a value; others take the next word unless they contain "=".
_FLAGS = frozenset(
    (
        *("--contiguous", "--exclusive", "--hold", "-H", "--ignore-pbs", "--no-kill", "-k"),
        *("--no-requeue", "--overcommit", "-O", "--oversubscribe", "-s", "--parsable"),
        *("--quiet", "-Q", "--requeue", "--reboot", "--spread-job", "--test-only"),
        *("--use-min-nodes", "--verbose", "-v", "--wait", "-W"),
    )
)


def resubmission(inputs: ReportInput, values: FactValues) -> Resubmission | None:
    """A submit line with lower limits; None if the runs do not show that less is enough."""
    job = inputs.job
    options: list[tuple[Sequence[str], str]] = []
    if not _is_comparable(inputs):
        return None
    memory, seconds = values["memory_to_ask"], values["time_to_ask"]
    saved_bytes = saved_seconds = 0.0
    if isinstance(memory, float | int) and _is_worthwhile(memory, job["allocated_memory_bytes"]):
        saved_bytes = job["allocated_memory_bytes"] - memory
        options.append(
            (_MEMORY_OPTIONS, f"--mem={round(memory / (job['allocated_nodes'] or 1)) >> 20}M")
        )
    if isinstance(seconds, float | int) and _is_worthwhile(seconds, job["time_limit_seconds"]):
        saved_seconds = job["time_limit_seconds"] - seconds
        options.append((_TIME_OPTIONS, f"--time={format_clock(seconds)}"))
    line = job["submit_line"]
    for names, option in options:
        line = with_option(line, names, option)
    if line == job["submit_line"]:
        return None
    return Resubmission(line, len(inputs.similar), int(saved_bytes), int(saved_seconds))


def _is_comparable(inputs: ReportInput) -> bool:
    """Whether it completed, as did enough runs of its name, and was submitted with Slurm."""
    job: Row = inputs.job
    return (
        job["state"] == JobState.COMPLETED
        and inputs.alike == "name"
        and len(inputs.similar) >= MIN_EARLIER_RUNS
        and (job["submit_line"].split(" ", 1)[0].rpartition("/")[2] in _COMMANDS)
    )


def _is_worthwhile(reduced: float, current: float | None) -> bool:
    """Whether the reduction is large enough to suggest."""
    return current is not None and reduced < WORTHWHILE_REDUCTION * current


def with_option(line: str, names: Sequence[str], option: str) -> str:
    """Replace the options with these names by `option`, or else insert it before all others.

    Words from the script's name on belong to the script, and are kept.
    """
    words = line.split(" ")
    kept, position, is_placed = words[:1], 1, False
    while position < len(words) and (words[position].startswith("-") or not words[position]):
        word = words[position]
        name, equals, _ = word.partition("=")
        is_attached = len(word) > 2 and not word.startswith("--")  # like -t30
        name = name[:2] if is_attached else name
        width = 1 if equals or is_attached or not word or name in _FLAGS else 2
        if name not in names:
            kept += words[position : position + width]
        elif not is_placed:
            kept.append(option)
            is_placed = True
        position += width
    if not is_placed:
        kept.insert(1, option)
    return " ".join(kept + words[position:])
