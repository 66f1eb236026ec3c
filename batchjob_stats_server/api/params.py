"""Query parameters: accepted values and error messages."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Path, Query, Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from batchjob.runtime import values
from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.days import DAY
from batchjob_stats_server.api.rows import RowFormat
from batchjob_stats_server.http.problems import Problem

PREFIX = "/api/v1"
"""Where the routes of the API are."""
_MILLISECONDS = 100_000_000_000  # from here on; as seconds, this would be in the year 5138
_MAX_TIME = 253_402_300_799  # the end of the year 9999, in seconds


def parse_time(value: Any) -> int:
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
    if 0 <= parsed <= _MAX_TIME:
        return parsed
    raise ValueError(f"expected epoch seconds, or a time such as 2026-04-04T22:30Z, got {text!r}")


Time = Annotated[int, BeforeValidator(parse_time, json_schema_input_type=str)]
_PRINTABLE = r"^[^\x00-\x1f]+$"
Word = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=_PRINTABLE)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_PRINTABLE)]
RowId = Annotated[int, Path(ge=1, lt=2**63)]

_Any = TypeVar("_Any")
InQuery = Annotated[_Any, Query()]
"""A parameter of the query, or a model of all of them."""


def _parse_ratio(value: Any) -> Any:
    """`25%` is 0.25; anything else is left to the type."""
    text = str(value).strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else value
    except ValueError:
        raise ValueError("expected a fraction such as 0.25 or 25%") from None


def _text(parse: Callable[[str], Any]) -> BeforeValidator:
    """A parser of a text, in which blanks do not count."""
    return BeforeValidator(
        lambda value: parse(str(value).replace(" ", "")), json_schema_input_type=str
    )


Duration = Annotated[
    int, _text(lambda text: round(values.duration(text))), Field(ge=0, le=_MAX_TIME)
]
Size = Annotated[int, _text(values.size), Field(ge=0, lt=2**63)]
Energy = Annotated[float, _text(values.energy), Field(ge=0)]
Ratio = Annotated[
    float,
    BeforeValidator(_parse_ratio, json_schema_input_type=float | str),
    Field(ge=0, le=1000, allow_inf_nan=False),
]
Count = Annotated[int, Field(ge=0, lt=2**31)]

_SELECT_ALL = ("", ".*")


class QueryParams(BaseModel):
    """The base of all: an unknown parameter is an error, and does not give a wider answer.

    By itself, it accepts no parameters.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_values(cls, given: Any) -> Any:
        """Remove values that select nothing: a variable of Grafana's is empty, or `.*` for all."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value not in _SELECT_ALL}


REPEATABLE = frozenset({"state", "state_word", "by", "metric", "job", "columns"})
"""Parameters that are lists. Any other must not be repeated: of two values, which would count?"""


async def refuse_repeated_parameters(request: Request) -> None:
    """Refuse a repeated parameter that is not a list; for all routes except the PromQL gate's.

    A name that stands twice in a JSON body is refused too.
    """
    _refuse_repeated([name for name, _ in request.query_params.multi_items()], REPEATABLE)
    if "json" in request.headers.get("content-type", "") and (body := await request.body()):
        try:
            parse_json(body)
        except ValueError as error:
            raise Problem(422, f"body: {error}") from error


async def _require_origin(request: Request) -> None:
    """Refuse a request without an Origin header, which browsers send with every form.

    The request layer has compared the origin with ours. This prevents cross-site request forgery,
    since browsers send the credentials of a log-in proxy or provider automatically.
    """
    if "origin" not in request.headers:
        raise Problem(403, "expected a form of this server; programs use the API")


FromForm = Annotated[None, Depends(_require_origin)]


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; raises Problem if one of them stands twice."""
    pairs = parse_qsl((await request.body()).decode("utf-8", "replace"))
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


async def _read_own_form(request: Request, _: FromForm) -> dict[str, str]:
    return await read_form(request)


OwnForm = Annotated[dict[str, str], Depends(_read_own_form)]
"""The fields of a form of a page of this server."""


def refuse_other_fields(form: Mapping[str, str], shown: Collection[str]) -> None:
    """Refuse fields that the page does not have."""
    if unknown := form.keys() - set(shown):
        raise Problem(422, f"{min(unknown):.80}: this form has no such field")


def _refuse_repeated(names: Sequence[str], repeatable: Set[str] = frozenset()) -> None:
    if len(names) > len(set(names)):
        repeated = {name for name in names if names.count(name) > 1} - repeatable
        if repeated:
            raise Problem(422, f"{min(repeated):.80}: must not be repeated")


def _split_words(given: Any) -> Any:
    """`a,b` is two words, like two parameters of the same name."""
    if not isinstance(given, list):
        return given
    words = [word for each in given for word in str(each).split(",")]
    return [word for word in words if word not in _SELECT_ALL]


OneOrMore = BeforeValidator(_split_words)


class RowsParams(QueryParams):
    """Keys and format of the rows."""

    fields: Words | None = Field(
        None, description="Names of the keys to return, separated by commas."
    )
    format: RowFormat = Field("json", description="Format of the rows.")


class ClusterParams(QueryParams):
    """Restricts the answer to a cluster; job ids may be used on several."""

    cluster: Word | None = None


class ClusterRows(RowsParams, ClusterParams):
    """Keys and format of the rows, and a cluster."""


class RunParams(ClusterParams):
    """Selects one run of a job, whose id may have been used several times."""

    run: int | None = Field(
        None, ge=1, le=2**53, description="`id` of the run; default: the latest."
    )


class Days(ClusterRows):
    """Restricts the rows to whole days (UTC), and to a cluster."""

    since: Time | None = Field(None, description="First day; default: 30 days ago.")
    until: Time | None = Field(None, description="Day after the last; default: tomorrow.")

    def window(self, now: float) -> tuple[int, int]:
        """Midnights: the days that begin in [first, second)."""
        today = int(now) // DAY * DAY
        since = today - 30 * DAY if self.since is None else self.since // DAY * DAY
        return since, today + DAY if self.until is None else self.until


class SumsParams(Days):
    """Selects the days, accounts and users to sum."""

    account: Word | None = None
    user: Word | None = None

    def owners(self) -> dict[str, Any]:
        """The cluster, account and user of the jobs that are summed; None selects all."""
        return {"cluster": self.cluster, "account": self.account, "user": self.user}
