"""What a server has answered: its rows and documents, or the error that it stands for.

Anything else at the address, such as a proxy's log-in page, is reported in one line.
"""

import http.client
import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from batchjob_cli.client.problems import UnreachableError, of_answer

_SHOWN = 60  # maximum characters of a body in an error message


class ApiReply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    next: str  # target of the Link header with rel=next, or ""


def next_page(link: str) -> str:
    """The target of a header Link (RFC 8288) with rel=next, as our server writes it; or ""."""
    found = re.search(r'<([^<>]*)>; *rel="?next"?', link)
    return found[1] if found else ""


def good(answer: ApiReply) -> ApiReply:
    """The answer, if it is one; raises the SettingsError that its status stands for."""
    if 200 <= answer.status < 300:
        return answer
    raise of_answer(answer.status, _said(answer))


def rows_in(answer: ApiReply, keys: Collection[str] = ()) -> list[dict[str, Any]]:
    """The rows of a list, which have at least these keys; raises SettingsError."""
    rows = _decoded(answer)
    if isinstance(rows, list) and all(_has(row, keys) for row in rows):
        return rows
    raise not_ours(beginning(answer.body))


def document_in(answer: ApiReply, *keys: str) -> dict[str, Any]:
    """The one document, which has at least these keys; raises SettingsError."""
    document: dict[str, Any] = _decoded(answer)
    if _has(document, keys):
        return document
    raise not_ours(beginning(answer.body))


def not_ours(found: str) -> UnreachableError:
    """The complaint about an answer that no server of batchjob gives."""
    return UnreachableError(f"expected an answer of batchjob_stats_server, found {found}")


def beginning(body: bytes) -> str:
    """The first words of an answer, quoted."""
    return repr(" ".join(body[:_SHOWN].decode("utf-8", "replace").split()))


def _decoded(answer: ApiReply) -> Any:
    body = good(answer).body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise not_ours(beginning(body)) from None


def _has(found: Any, keys: Collection[str]) -> bool:
    return isinstance(found, dict) and found.keys() >= set(keys)


def _said(answer: ApiReply) -> str:
    """The detail of a problem (RFC 9457); else the meaning of the status."""
    try:
        problem = json.loads(answer.body)
        return str(problem.get("detail") or problem["title"])
    except (ValueError, AttributeError, KeyError):
        return http.client.responses.get(answer.status, "refused")
