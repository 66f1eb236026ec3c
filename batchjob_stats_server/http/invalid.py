"""Messages about invalid parameters, in the server's words instead of its validator's."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from batchjob.runtime.settings import suggest_names

_CHOICES = re.compile(r"\^(-\?)?\(([\w.|]+)\)\$")
_MAX_QUOTED_CHARACTERS = 60  # maximum characters of a value that is quoted


def describe_error(error: Mapping[str, Any]) -> str:
    """One error of pydantic's `errors()` as `NAME: expected ..., got ...`."""
    name = ".".join(str(part) for part in error["loc"][1:]) or str(error["loc"][0])
    describe = _MESSAGES.get(error["type"])
    if describe is None:
        return f"{name}: {str(error['msg']).removeprefix('Value error, ')}"
    message = describe(error.get("ctx", {}), error.get("input"))
    if message.startswith("expected"):
        message += f", got {_quote(error.get('input'))}"
    return f"{name}: {message}"


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}…"


def _describe_pattern(context: Mapping[str, Any], value: Any) -> str:
    match = _CHOICES.fullmatch(context["pattern"])
    if not match:
        return "expected text without control characters"
    choices = match[2].split("|")
    return f"unknown value {value!r}{suggest_names(str(value).lstrip('-'), choices)}"


def _describe_choices(context: Mapping[str, Any], _: Any) -> str:
    return f"expected {str(context['expected']).replace(chr(39), '')}"


_Describe = Callable[[Mapping[str, Any], Any], str]

_MESSAGES: Mapping[str, _Describe] = {
    "enum": _describe_choices,
    "literal_error": _describe_choices,
    "extra_forbidden": lambda *_: "unknown parameter",
    "missing": lambda *_: "is required",
    "bool_parsing": lambda *_: "expected true or false",
    "int_parsing": lambda *_: "expected a whole number",
    "int_type": lambda *_: "expected a whole number",
    "int_from_float": lambda *_: "expected a whole number",
    "int_parsing_size": lambda *_: "expected a smaller number",
    "float_parsing": lambda *_: "expected a number",
    "float_type": lambda *_: "expected a number",
    "finite_number": lambda *_: "expected a finite number",
    "string_type": lambda *_: "expected text",
    "list_type": lambda *_: "expected a list",
    "dict_type": lambda *_: "expected a mapping",
    "greater_than_equal": lambda context, _: f"expected at least {context['ge']}",
    "greater_than": lambda context, _: f"expected more than {context['gt']}",
    "less_than_equal": lambda context, _: f"expected at most {context['le']}",
    "less_than": lambda context, _: f"expected less than {context['lt']}",
    "string_too_short": lambda context, _: (
        f"expected at least {context['min_length']} character(s)"
    ),
    "string_too_long": lambda context, _: f"expected at most {context['max_length']} characters",
    "too_short": lambda context, _: f"expected at least {context['min_length']} item(s)",
    "too_long": lambda context, _: f"expected at most {context['max_length']} items",
    "string_pattern_mismatch": _describe_pattern,
    "json_invalid": lambda context, _: f"not JSON: {context['error']}",
    "model_attributes_type": lambda *_: "expected a JSON object",
}
"""Pydantic's error type (https://docs.pydantic.dev/latest/errors/validation_errors/) -> words."""
