"""Makes the message of a batch: the report of a job, a summary of many, or a digest."""

import html
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from batchjob.runtime.formatting import format_duration, format_exit_code, to_header
from batchjob.runtime.formatting import to_printable as printable
from batchjob.runtime.http_client import FetchError, fetch, tls_context
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.times import format_time, to_milliseconds
from batchjob_stats_db.database.outbox import MessageBatch
from batchjob_stats_db.database.subscriptions import MessageEvent, signature
from batchjob_stats_db.poller.messages.channels import Message
from batchjob_stats_db.poller.messages.options import MessageOptions

SCHEMA = 1
"""Version of the document for webhooks, which is documented in docs/messages.md."""
_SECONDS, _LIMIT = 30.0, 4 << 20
_SUBJECT_CHARACTERS = 200


class NoReportError(Exception):
    """The server gave no report; the text says why."""


def read_page(options: MessageOptions, token: str, path: str, query: Mapping[str, str]) -> bytes:
    """A page of the server, such as a report or a digest; raises NoReportError."""
    url = f"{options.server}/api/v1/{path}"
    url += f"?{urlencode(query)}" if query else ""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        tls = tls_context(options.ca_file) if url.startswith("https") else None
        reply = fetch(url, headers=headers, seconds=_SECONDS, limit=_LIMIT, tls=tls)
    except (FetchError, OSError) as error:
        raise NoReportError(f"messages.server: {error}") from error
    if reply.status != 200:
        raise NoReportError(f"messages.server: {path}: status {reply.status}")
    return reply.body


def server_problem(options: MessageOptions, token: str) -> str:
    """Why the server cannot be used; "" if it can."""
    try:
        role = parse_json(read_page(options, token, "me", {})).get("role")
    except (NoReportError, ValueError) as error:
        return str(error)
    if role not in ("viewer", "admin"):
        return f"messages.token-file: expected a token with the role viewer, got {role}"
    return ""


def compose(
    batch: MessageBatch,
    options: MessageOptions,
    token: str,
    site: Mapping[str, str],
    *,
    patient: bool,
) -> Message:
    """The message of a batch. Raises NoReportError without a report, if `patient`."""
    first = batch.first
    link = options.link or options.server
    query = {"user": first.username, "signature": signature(site, "unsubscribe", first.username)}
    unsubscribe = f"{link}/unsubscribe?{urlencode(query)}"
    missing = text = report = ""
    document = None
    is_one = sum(batch.states.values()) == 1 or first.job_id is None
    if is_one:
        path, query = _page_of(first, options.zone)
        try:
            forms = ({**query, "format": form} for form in ("text", "html", "json"))
            pages = (read_page(options, token, path, form) for form in forms)
            text, report, printed = (page.decode("utf-8", "replace") for page in pages)
            document = parse_json(printed)
        except NoReportError as error:
            if patient:
                raise
            missing = f"The report is missing: {error}."
    page = f"{link}/jobs?{urlencode({'user': first.username, 'cluster': first.cluster})}"
    if is_one and first.jobid is not None:
        page = f"{link}/jobs/{quote(first.jobid, safe='')}?{urlencode({'cluster': first.cluster})}"
    subject = _subject_of_one(first) if is_one else _subject_of_many(batch)
    zone = ZoneInfo(options.zone)
    lines = [subject, *(_lines_of_one(first, zone) if is_one else _lines_of_many(batch))]
    lines += [missing] if missing else []
    footer = [
        f"Details: {page}",
        f"Choose what you are told: {link}/messages",
        f"Unsubscribe from all messages: {unsubscribe}",
    ]
    middle = ["", text.rstrip("\n")] if text else []
    return Message(
        id=f"{first.created_time}.{batch.id}.batchjob",
        user=first.username,
        subject=to_header(f"[batchjob] {subject}")[:_SUBJECT_CHARACTERS],
        text="\n".join([*lines, *middle, "", "-- ", *footer]) + "\n",
        html=_as_html(lines, report, footer),
        url=page,
        unsubscribe=unsubscribe,
        document=_document(batch, subject, page, lines, document),
    )


def _page_of(row: sa.Row[Any], zone: str) -> tuple[str, dict[str, str]]:
    """Where the server has the report of a row."""
    if row.event == MessageEvent.DIGEST:
        owner = {"account": row.account} if row.account else {"user": row.username}
        return "digest", {**owner, "cluster": row.cluster, "until": row.detail}
    return f"jobs/{quote(row.jobid, safe='')}/report", {
        "cluster": row.cluster, "run": str(row.job_id), "zone": zone
    }  # fmt: skip


def _subject_of_one(row: sa.Row[Any]) -> str:
    if row.event == MessageEvent.DIGEST:
        whose = f"of account {printable(row.account)} " if row.account else ""
        return f"The week {whose}on {printable(row.cluster)}"
    name = f" ({printable(row.name)})" if row.name else ""
    job = f"Job {printable(row.jobid)}{name} on {printable(row.cluster)}"
    what = {
        MessageEvent.STARTED: "started",
        MessageEvent.IDLE: row.detail,
        MessageEvent.MEMORY: row.detail,
    }
    return f"{job}: {what.get(row.event) or row.job_state}"


def _lines_of_one(row: sa.Row[Any], zone: ZoneInfo) -> list[str]:
    if row.job_id is None:
        return []
    times = [
        f"{what} {format_time(at, zone)}"
        for what, at in (("Started", row.start_time), ("Ended", row.end_time))
        if at is not None
    ]
    if code := format_exit_code(row.exit_code, row.exit_code_or_128_more):
        times.append(f"Exit code {code}")
    is_early = row.end_time is not None and row.usage_due_time is not None
    notice = ["The final figures are not stored yet; those below may change."] if is_early else []
    return [*times, *notice]


def _subject_of_many(batch: MessageBatch) -> str:
    cluster, number = printable(batch.first.cluster), sum(batch.states.values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(batch.states.items()))
    return f"{number} jobs on {cluster}: {states}"


def _lines_of_many(batch: MessageBatch) -> list[str]:
    lines = ["", "Many things happened at once, so this is one message about all of them."]
    for row in batch.rows:
        if row.jobid is not None:
            name = f" ({printable(row.name)[:60]})" if row.name else ""
            ran = f" after {format_duration(row.elapsed_seconds)}" if row.elapsed_seconds else ""
            lines.append(f"  {printable(row.jobid)}{name}: {row.job_state}{ran}")
    left = sum(batch.states.values()) - len(batch.rows)
    return [*lines, f"  and {left} more"] if left > 0 else lines


_NO_PAGE = '<!doctype html><html lang="en"><meta charset="utf-8"><body></body></html>'


def _as_html(lines: list[str], page: str, footer: list[str]) -> str:
    """The page of the server with what precedes and follows it; without one, a page of that."""
    begin, body, rest = (page or _NO_PAGE).partition("<body>")
    inner, end, last = rest.rpartition("</body>")
    return "".join((begin, body, _preformatted(lines), inner, _preformatted(footer), end, last))


def _preformatted(lines: list[str]) -> str:
    """Lines of text, of which a last word that is an address becomes a link."""
    written = []
    for line in lines:
        before, space, last = html.escape(line).rpartition(" ")
        is_link = last.startswith(("http://", "https://"))
        written.append(
            f'{before}{space}<a href="{last}">{last}</a>' if is_link else html.escape(line)
        )
    return "<pre>" + "\n".join(written) + "</pre>"


def _document(
    batch: MessageBatch, subject: str, page: str, lines: list[str], report: object
) -> dict[str, Any]:
    first = batch.first
    return {
        "schema": SCHEMA,
        "id": f"{first.created_time}.{batch.id}",
        "event": first.event if len(batch.rows) == 1 else "summary",
        "user": first.username,
        "cluster": first.cluster,
        "account": first.account,
        "subject": subject,
        "url": page,
        "states": {state: count for state, count in batch.states.items() if state},
        "jobs": [
            {
                "jobid": row.jobid, "run": row.job_id, "name": row.name, "state": row.job_state,
                "event": row.event, "start_time": to_milliseconds(row.start_time),
                "end_time": to_milliseconds(row.end_time), "exit_code": row.exit_code,
            }
            for row in batch.rows
            if row.job_id is not None
        ],
        "text": "\n".join(lines),
        "report": report,
    }  # fmt: skip
