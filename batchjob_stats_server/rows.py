"""Rows of the database as an answer, in JSON, JSON lines or CSV: a line of text for each."""

import csv
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from fastapi import Response

from batchjob.cells import harmless
from batchjob_stats_db.queries.whole import Names
from batchjob_stats_server.keys import Keys, MadeKeys, Row, values

Rows = Sequence[Mapping[Any, Any]]
Write = Callable[[Row], bytes]


class Format(StrEnum):
    """How rows are written."""

    JSON = "json"  # a list
    NDJSON = "ndjson"  # an object on each line
    CSV = "csv"  # with a header


def lines(rows: Rows, keys: Keys, form: Format, made: MadeKeys = ()) -> list[bytes]:
    """Each of the rows, which have the same columns."""
    if not rows:
        return []
    write = line(tuple(rows[0]), keys, form, made)
    return [write(tuple(row.values())) for row in rows]


@functools.lru_cache(256)
def line(names: Names, keys: Keys, form: Format, made: MadeKeys = ()) -> Write:
    """What writes a row of these columns with these keys, some of them made of several columns."""
    valued, write = values(names, keys, made), _FORMS[form].line(keys)
    return lambda row: write(valued(row))


def framed(written: Sequence[bytes], keys: Keys, form: Format) -> tuple[bytes, str]:
    """All lines as one text, and its media type. No lines are an empty list."""
    kind = _FORMS[form]
    return kind.begin(keys) + kind.between.join(written) + kind.end, kind.media_type


def answer(rows: Rows, keys: Keys, form: Format, made: MadeKeys = ()) -> Response:
    """The rows as an answer."""
    text, media_type = framed(lines(rows, keys, form, made), keys, form)
    return Response(text, media_type=media_type)


class _Form(NamedTuple):
    """How a format writes a row with these keys, and what is around all of them."""

    media_type: str
    line: Callable[[Keys], Write]
    begin: Callable[[Keys], bytes]
    between: bytes = b""
    end: bytes = b""


_ENCODER = msgspec.json.Encoder()


def _object(keys: Keys) -> Write:
    # Made in a tenth of a dict's time, and written in half.
    kind = msgspec.defstruct("Row", keys, gc=False)
    encode = _ENCODER.encode
    return lambda row: encode(kind(*row))


def _object_line(keys: Keys) -> Write:
    write = _object(keys)
    return lambda row: write(row) + b"\n"


def _cells(row: Row) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(map(harmless, row))
    return out.getvalue().encode()


_FORMS: Mapping[Format, _Form] = {
    Format.JSON: _Form("application/json", _object, lambda _: b"[", b",", b"]"),
    Format.NDJSON: _Form("application/x-ndjson", _object_line, lambda _: b""),
    Format.CSV: _Form("text/csv", lambda _: _cells, _cells),
}
