"""Parameters of questions: what is accepted, and in which words."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_origin

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from batchjob_stats_server.problems import Problem
from batchjob_stats_server.rows import Format

_MILLISECONDS = 100_000_000_000  # from here on; as seconds that were the year 5138
_LAST = 253_402_300_799  # the end of the year 9999, in seconds

DAY = 86400


def seconds(value: Any) -> int:
    """Epoch seconds from seconds, milliseconds or RFC 3339 (`2026-01-31T12:00:00+01:00`)."""
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) <= 15:
        number = int(text)
        return number // 1000 if number >= _MILLISECONDS else number
    try:
        moment = datetime.fromisoformat(text)
        parsed = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        parsed = -1
    if 0 <= parsed <= _LAST:
        return parsed
    raise ValueError("expected epoch seconds, milliseconds or RFC 3339")


Time = Annotated[
    int,
    BeforeValidator(seconds, json_schema_input_type=str),
]
Word = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
Duration = Annotated[int, Field(ge=0, le=_LAST)]
Ratio = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]

_ANY = ("", ".*")


class Query(BaseModel):
    """The base of all: a parameter nobody knows is an error, not a wider answer."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _chosen(cls, given: Any) -> Any:
        """Leave out what chooses nothing: a variable of Grafana's is empty, or `.*` for all."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value not in _ANY}


Q = TypeVar("Q", bound=Query)


def read(kind: type[Q]) -> Callable[[Request], Awaitable[Q]]:
    """A dependency that reads a question, as FastAPI's own `Query()` would.

    That one looks for each parameter that there might be: for thirty as long as SQLite needs to
    find a page of jobs. The OpenAPI document is told of them by `described`.
    """
    lists = {name for name, field in kind.model_fields.items() if _is_list(field.annotation)}

    async def question(request: Request) -> Q:
        given: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            if name in lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Problem(422, f"{name}: expected once")
            else:
                given[name] = value
        try:
            return kind.model_validate(given)
        except ValidationError as error:
            wrong = [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
            raise RequestValidationError(wrong) from error

    return question


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list


def described(kind: type[Query]) -> dict[str, Any]:
    """The parameters for the OpenAPI document: a route's `openapi_extra`."""
    schema = kind.model_json_schema()
    known = _whole(schema["properties"], schema.get("$defs", {}))
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": each,
             **{key: each[key] for key in ("description",) if key in each}}
            for name, each in known.items()
        ]
    }  # fmt: skip


def _whole(part: Any, defined: dict[str, Any]) -> Any:
    """A part of a schema with what it refers to in its place."""
    if isinstance(part, list):
        return [_whole(each, defined) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        meant = defined[part["$ref"].rpartition("/")[2]]
        part = {**meant, **{key: value for key, value in part.items() if key != "$ref"}}
    return {key: _whole(value, defined) for key, value in part.items()}


def _words(given: Any) -> Any:
    """`a,b` is two words, as is naming the parameter twice."""
    if not isinstance(given, list):
        return given
    words = [word for each in given for word in str(each).split(",")]
    return [word for word in words if word not in _ANY]


OneOrMore = BeforeValidator(_words)


class Table(Query):
    """How rows are wanted."""

    fields: Word | None = Field(None, description="Names of the wanted keys, with commas between.")
    format: Format = Field(Format.JSON, description="How the rows are written.")


class Days(Table):
    """Rows about whole days (UTC)."""

    since: Time | None = Field(None, description="First day; else 30 days ago.")
    until: Time | None = Field(None, description="The day after the last; else tomorrow.")
    cluster: Word | None = None

    def window(self, now: float) -> tuple[int, int]:
        """Midnights: the days that begin in [first, second)."""
        today = int(now) // DAY * DAY
        since = today - 30 * DAY if self.since is None else self.since // DAY * DAY
        return since, today + DAY if self.until is None else self.until
