"""The end of a page as an opaque text that fits only the query it came from."""

import base64
import binascii
import hashlib
import json
import math
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request

from batchjob_stats_db.queries.index_walk import After
from batchjob_stats_server.http.problems import Problem

_LARGEST = 2**63


def encode(question: str, after: After) -> str:
    """The text for a page that ended there."""
    text = json.dumps([_digest(question), *after])
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(question: str, word: str, kind: type) -> After:
    """The place; an invalid text, or one of another query, raises Problem."""
    try:
        digest, value, number, part = json.loads(base64.b64decode(word, b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise Problem(
            422, "cursor: expected the value from the `next` link of an answer"
        ) from error
    sound = isinstance(part, str) and _sound(value, number, kind)
    if digest != _digest(question) or not sound:
        raise Problem(422, "cursor: it belongs to another query")
    return After(value, number, part)


def link(request: Request, question: str, more: After | None) -> dict[str, str]:
    """The header that links to the next page, if there is one."""
    if more is None:
        return {}
    given = [pair for pair in request.query_params.multi_items() if pair[0] != "cursor"]
    query = urlencode([*given, ("cursor", encode(question, more))])
    return {"Link": f'<{quote(request.scope["path"])}?{query}>; rel="next"'}


def _sound(value: Any, number: Any, kind: type) -> bool:
    """Whether every database accepts it; anybody can write such a text."""
    if type(number) is not int or not 0 <= number < _LARGEST:
        return False
    if isinstance(value, str):
        return kind is str and value.isprintable()
    if value is None:
        return True
    numeric = type(value) in (int, float) and kind is not str
    return numeric and math.isfinite(value) and abs(value) < _LARGEST


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]
