"""A job's submit line with the resources that its runs needed, and what that saves.

For Slurm only, where options on the command line override those in the script.
"""

from collections.abc import Sequence

from batchjob.runtime.formatting import clock
from batchjob.schedulers.states import JobState
from batchjob_stats_server.report.conditions import Values
from batchjob_stats_server.report.model import ReportInput, Resubmission, Row

FEWEST_RUNS = 3  # in addition to the job itself; with fewer, one outlier would decide
_COMMANDS = ("sbatch", "srun", "salloc")
_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
_TIME = ("--time", "-t")
# Options of sbatch without a value; others take the next word unless they contain "=".
_ALONE = frozenset(
    (
        *("--contiguous", "--exclusive", "--hold", "-H", "--ignore-pbs", "--no-kill", "-k"),
        *("--no-requeue", "--overcommit", "-O", "--oversubscribe", "-s", "--parsable"),
        *("--quiet", "-Q", "--requeue", "--reboot", "--spread-job", "--test-only"),
        *("--use-min-nodes", "--verbose", "-v", "--wait", "-W"),
    )
)


def resubmission(material: ReportInput, values: Values) -> Resubmission | None:
    """None if the runs do not show that less would be enough."""
    job = material.job
    options: list[tuple[Sequence[str], str]] = []
    if not _judged(material):
        return None
    memory, seconds = values["memory_to_ask"], values["time_to_ask"]
    saved_bytes = saved_seconds = 0.0
    if isinstance(memory, float | int) and _less(memory, job["allocated_memory_bytes"]):
        saved_bytes = job["allocated_memory_bytes"] - memory
        options.append((_MEMORY, f"--mem={round(memory / (job['allocated_nodes'] or 1)) >> 20}M"))
    if isinstance(seconds, float | int) and _less(seconds, job["time_limit_seconds"]):
        saved_seconds = job["time_limit_seconds"] - seconds
        options.append((_TIME, f"--time={clock(seconds)}"))
    line = job["submit_line"]
    for names, option in options:
        line = with_option(line, names, option)
    if line == job["submit_line"]:
        return None
    return Resubmission(line, len(material.similar), int(saved_bytes), int(saved_seconds))


def _judged(material: ReportInput) -> bool:
    """Whether it and enough runs of its name ended well, and its line is one of Slurm's."""
    job: Row = material.job
    return (
        job["state"] == JobState.COMPLETED
        and material.alike == "name"
        and len(material.similar) >= FEWEST_RUNS
        and (job["submit_line"].split(" ", 1)[0].rpartition("/")[2] in _COMMANDS)
    )


def _less(wanted: float, given: float | None) -> bool:
    """Whether the difference is worth a change."""
    return given is not None and wanted < 0.75 * given


def with_option(line: str, names: Sequence[str], option: str) -> str:
    """The line with the option in place of those with these names, or else before all others.

    Words from the script's name on belong to the script, and are kept.
    """
    words = line.split(" ")
    kept, place, done = words[:1], 1, False
    while place < len(words) and (words[place].startswith("-") or not words[place]):
        word = words[place]
        name, equals, _ = word.partition("=")
        glued = len(word) > 2 and not word.startswith("--")  # like -t30
        name = name[:2] if glued else name
        count = 1 if equals or glued or not word or name in _ALONE else 2
        if name not in names:
            kept += words[place : place + count]
        elif not done:
            kept.append(option)
            done = True
        place += count
    if not done:
        kept.insert(1, option)
    return " ".join(kept + words[place:])
