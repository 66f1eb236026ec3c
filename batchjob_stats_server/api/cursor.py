"""The end of a page as an opaque text that fits only the query it came from."""

import base64
import binascii
import hashlib
import json
import math
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request

from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_server.http.problems import Problem

_LARGEST = 2**63


def encode(query_key: str, after: After) -> str:
    """The text for a page that ended there."""
    text = json.dumps([_digest(query_key), *after])
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(query_key: str, text: str, kind: type) -> After:
    """The end of the previous page; raises Problem for an invalid text or one of another query."""
    try:
        digest, value, number, part = parse_json(base64.b64decode(text, b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise Problem(
            422, "cursor: expected the value from the `next` link of an answer"
        ) from error
    valid = isinstance(part, str) and _is_valid(value, number, kind)
    if digest != _digest(query_key) or not valid:
        raise Problem(422, "cursor: it belongs to another query")
    return After(value, number, part)


def link(request: Request, query_key: str, more: After | None) -> dict[str, str]:
    """The header that links to the next page, if there is one."""
    if more is None:
        return {}
    given = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
    query = urlencode([*given, ("cursor", encode(query_key, more))])
    return {"Link": f'<{quote(request.scope["path"])}?{query}>; rel="next"'}


def _is_valid(value: Any, number: Any, kind: type) -> bool:
    """Whether every database accepts the values, which a client may have made up."""
    if type(number) is not int or not 0 <= number < _LARGEST:
        return False
    if isinstance(value, str):
        return kind is str and value.isprintable()
    if value is None:
        return True
    numeric = type(value) in (int, float) and kind is not str
    return numeric and math.isfinite(value) and abs(value) < _LARGEST


def _digest(query_key: str) -> str:
    return hashlib.sha256(query_key.encode()).hexdigest()[:16]
