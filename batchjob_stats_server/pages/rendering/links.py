"""Addresses of pages, and references to jobs in them."""

import functools
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus, urlsplit

from sqlalchemy.engine import RowMapping

from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.report.model import Row


def path(*parts: object, **query: object) -> str:
    """`/a/b?c=d` from unquoted texts; None and "" are left out, tuples give several values."""
    address = "/" + "/".join([_quote(part) for part in parts])
    parameters = [
        f"{name}={_quote(each, plus=True)}"
        for name, value in query.items()
        if value is not None
        for each in (value if isinstance(value, tuple) else (value,))
        if each != ""
    ]
    return f"{address}?{'&'.join(parameters)}" if parameters else address


def _quote(value: object, plus: bool = False) -> str:
    """Percent-encode a value; skips urllib for letters and digits, since it is slow."""
    text = str(value)
    return text if text.isascii() and text.isalnum() else _percent_encoded(text, plus)


@functools.lru_cache(4096)
def _percent_encoded(text: str, plus: bool) -> str:
    return quote_plus(text) if plus else quote(text, safe="")


def local_path(text: str) -> str:
    """The path and query of an address, without its host; `/` if it is invalid."""
    try:
        url = urlsplit(text)
    except ValueError:  # "Invalid IPv6 URL"
        return "/"
    return "/" + url.path.lstrip("/\\") + (f"?{url.query}" if url.query else "")


def job_path(row: Row) -> str:
    """The page of a run; its address stays valid when the database is rebuilt."""
    run = f"&run={row['run']}" if row["run"] > 1 else ""
    cluster, submitted = _quote(row["cluster"], plus=True), row["submit_time"]
    return f"/jobs/{_quote(row['jobid'])}?cluster={cluster}&submitted={submitted}{run}"


def find_run(
    runs: Iterable[RowMapping], cluster: str | None = None, submit_time: int | None = None,
    run: int | None = None,
) -> RowMapping | None:  # fmt: skip
    """The first of the runs of an id that fits, by default the latest."""
    for row in runs:
        if (
            cluster in (None, row["cluster"])
            and submit_time in (None, row["submit_time"])
            and run in (None, row["run"])
        ):
            return row
    return None


def reference(row: Row) -> str:
    """A run as one word; see `parse_reference`."""
    return f"{row['cluster']}:{row['submit_time']}:{row['run']}:{row['jobid']}"


def references(rows: Sequence[Row], without: Row) -> tuple[str, ...]:
    """References to all runs but one."""
    return tuple(reference(row) for row in rows if row["id"] != without["id"])


def parse_reference(text: str) -> tuple[str, str | None, int | None, int | None]:
    """Id, cluster, time of submission and run from a `reference`, `cluster:jobid`, or a job id."""
    match text.split(":", 3):
        case [cluster, time, run, jobid] if time.isdigit() and run.isdigit() and len(time) < 13:
            return jobid, cluster, int(time), int(run[:9])
        case [jobid]:
            return jobid, None, None, None
        case [cluster, jobid]:
            return jobid, cluster, None, None
    raise Problem(422, f"job: expected a job id, or CLUSTER:ID, got {text[:80]}")
