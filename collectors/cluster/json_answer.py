"""The JSON object in what a scheduler's command printed."""

import json
import re
from typing import Any

from batchjob.runtime.subprocesses import SchedulerError


class NotJsonError(SchedulerError):
    """The command printed something else."""


def json_object(output: bytes) -> dict[str, Any]:
    """The object that begins a line: warnings may stand before it, and anything behind it.

    Raises NotJsonError.
    """
    at = re.search(rb"^\s*\{", output, re.MULTILINE)
    if at is None:
        said = " ".join(output[:200].decode("utf-8", "replace").split())
        raise NotJsonError(f"expected a JSON object, got {said!r}")
    text = output[at.start() :].decode("utf-8", "replace").lstrip()
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(f"expected a JSON object: {error}") from error
    assert isinstance(found, dict)  # it begins with a brace
    return found
