"""The output of LSF's commands with `-json`: a list of records whose values are all text.

Facts: bjobs(1). Names are in capitals; text may precede the JSON.
"""

from collections.abc import Sequence

from batchjob.runtime.subprocesses import (
    CommandFailedError,
    CommandOptions,
    NotJsonError,
    json_object,
    run,
)

JsonRecord = dict[str, str]


def ask_jobs(options: CommandOptions, bjobs: str, fields: Sequence[str]) -> list[JsonRecord]:
    """These fields of all jobs that bjobs lists. Raises SchedulerError."""
    argv = [bjobs, "-u", "all", "-a", "-json", "-o", " ".join(fields)]
    try:
        return records(run(options, argv, {"LSB_DISPLAY_YEAR": "Y"}).stdout)
    except CommandFailedError as error:
        if b"job found" in error.answer.stdout + error.answer.stderr:
            return []  # "No unfinished job found", with an exit status
        raise


def records(output: bytes) -> list[JsonRecord]:
    """The list RECORDS of an answer. Raises NotJsonError."""
    found = json_object(output).get("RECORDS")
    if not isinstance(found, list):
        raise NotJsonError("expected a JSON object with RECORDS")
    return [
        {str(name): str(value) for name, value in record.items()}
        for record in found
        if isinstance(record, dict)
    ]
