"""Parses answers of a server: rows, a document, or the error for its status.

Anything else at the address, such as a proxy's log-in page, is reported in one line.
"""

import re
from collections.abc import Collection
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from batchjob.runtime.json_reader import parse_json
from batchjob_cli.client.problems import UnreachableError, error_of_status

if TYPE_CHECKING:
    from batchjob.runtime.http_client import HttpReply

_QUOTED_CHARACTERS = 60  # maximum characters of a body in an error message


def next_page_link(header: str) -> str:
    """The target with rel=next in a header Link (RFC 8288), as our server writes it; or ""."""
    found = re.search(r'<([^<>]*)>; *rel="?next"?', header)
    return found[1] if found else ""


def require_success(answer: "HttpReply") -> "HttpReply":
    """The answer, if it is a success; raises the SettingsError for its status."""
    if 200 <= answer.status < 300:
        return answer
    raise error_of_status(answer.status, _problem_detail(answer))


def parse_rows(answer: "HttpReply", keys: Collection[str] = ()) -> list[dict[str, Any]]:
    """The rows of a list, which have at least these keys; raises SettingsError."""
    rows = _parse_body(answer)
    if isinstance(rows, list) and all(_has_keys(row, keys) for row in rows):
        return rows
    raise foreign_answer_error(quote_beginning(answer.body))


def parse_document(answer: "HttpReply", *keys: str) -> dict[str, Any]:
    """The one document, which has at least these keys; raises SettingsError."""
    document: dict[str, Any] = _parse_body(answer)
    if _has_keys(document, keys):
        return document
    raise foreign_answer_error(quote_beginning(answer.body))


def foreign_answer_error(found: str) -> UnreachableError:
    """The error for an answer that is not from a server of batchjob."""
    return UnreachableError(f"expected an answer of batchjob_stats_server, found {found}")


def quote_beginning(body: bytes) -> str:
    return repr(" ".join(body[:_QUOTED_CHARACTERS].decode("utf-8", "replace").split()))


def _parse_body(answer: "HttpReply") -> Any:
    body = require_success(answer).body
    try:
        return parse_json(body)
    except ValueError:
        raise foreign_answer_error(quote_beginning(body)) from None


def _has_keys(found: Any, keys: Collection[str]) -> bool:
    return isinstance(found, dict) and found.keys() >= set(keys)


def _problem_detail(answer: "HttpReply") -> str:
    """The detail of a problem (RFC 9457); else the meaning of the status."""
    try:
        problem = parse_json(answer.body)
        return str(problem.get("detail") or problem["title"])
    except (ValueError, AttributeError, KeyError):
        known = answer.status in HTTPStatus.__members__.values()
        return HTTPStatus(answer.status).phrase if known else "refused"
