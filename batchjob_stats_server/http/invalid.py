"""Messages about invalid parameters, in the server's words."""

import re
from collections.abc import Mapping
from typing import Any

from batchjob.runtime.settings import suggest_names

_CHOICES = re.compile(r"\^(-\?)?\(([\w.|]+)\)\$")
_MAX_QUOTED_CHARACTERS = 60  # maximum characters of a value that is quoted
_MESSAGES = {"extra_forbidden": "unknown parameter", "missing": "is required"}
"""Pydantic's error type (https://docs.pydantic.dev/latest/errors/validation_errors/) -> words."""


def describe_error(error: Mapping[str, Any]) -> str:
    """One error of pydantic's `errors()` as `NAME: expected ..., got ...`."""
    name = ".".join(str(part) for part in error["loc"][1:]) or str(error["loc"][0])
    return f"{name}: {_MESSAGES.get(error['type']) or _describe(error)}"


def _describe(error: Mapping[str, Any]) -> str:
    value = error.get("input")
    if error["type"] == "string_pattern_mismatch":
        match = _CHOICES.fullmatch(error["ctx"]["pattern"])
        if match:
            choices = match[2].split("|")
            return f"unknown value {value!r}{suggest_names(str(value).lstrip('-'), choices)}"
        message = "expected text without control characters"
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
        if " should " not in message:
            return message
        message = message.replace("Input should be", "expected")
    return f"{message}, got {_quote(value)}"


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}…"
