"""Addresses of pages, and references to jobs in them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, urlsplit

from batchjob_stats_server.http.problems import Problem

Row = Mapping[Any, Any]


def path(*parts: object, **query: object) -> str:
    """`/a/b?c=d` from plain texts; None and empty values are left out, tuples are repeated."""
    there = "/" + "/".join([_quoted(part) for part in parts])
    given = [
        f"{name}={_quoted(each, plus=True)}"
        for name, value in query.items()
        if value is not None
        for each in (value if isinstance(value, tuple) else (value,))
        if each != ""
    ]
    return f"{there}?{'&'.join(given)}" if given else there


def _quoted(value: object, plus: bool = False) -> str:
    """Most words need no quoting; urllib is slow for these as well."""
    text = str(value)
    return text if text.isascii() and text.isalnum() else _percent_encoded(text, plus)


@functools.lru_cache(4096)
def _percent_encoded(text: str, plus: bool) -> str:
    return quote_plus(text) if plus else quote(text, safe="")


def local_path(text: str) -> str:
    """The path and query of a given address, never of another host; `/` if there is none."""
    try:
        there = urlsplit(text)
    except ValueError:  # "Invalid IPv6 URL"
        return "/"
    return "/" + there.path.lstrip("/\\") + (f"?{there.query}" if there.query else "")


def job(row: Row) -> str:
    """The page of a run; its address stays valid when the database is rebuilt."""
    run = f"&run={row['run']}" if row["run"] > 1 else ""
    cluster, submitted = _quoted(row["cluster"], plus=True), row["submit_time"]
    return f"/jobs/{_quoted(row['jobid'])}?cluster={cluster}&submitted={submitted}{run}"


class Reference(NamedTuple):
    """A reference to a run of a job, or to the latest of its id."""

    jobid: str
    cluster: str | None = None
    submit_time: int | None = None
    run: int | None = None

    def means(self, row: Row) -> bool:
        """Whether it refers to this run, among the runs of its id."""
        return (
            self.cluster in (None, row["cluster"])
            and self.submit_time in (None, row["submit_time"])
            and self.run in (None, row["run"])
        )


def reference(row: Row) -> str:
    """A run in one word."""
    return f"{row['cluster']}:{row['submit_time']}:{row['run']}:{row['jobid']}"


def references(rows: Sequence[Row], without: Row) -> tuple[str, ...]:
    """References to all runs but one."""
    return tuple(reference(row) for row in rows if row["id"] != without["id"])


def referred(word: str) -> Reference:
    """The run of a reference: of `reference`, `cluster:jobid`, or a job id alone."""
    match word.split(":", 3):
        case [cluster, time, run, jobid] if time.isdigit() and run.isdigit() and len(time) < 13:
            return Reference(jobid, cluster, int(time), int(run[:9]))
        case [jobid]:
            return Reference(jobid)
        case [cluster, jobid]:
            return Reference(jobid, cluster)
    raise Problem(422, f"job: expected a job id, or CLUSTER:ID, got {word[:80]}")
