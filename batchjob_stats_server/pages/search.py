"""A search for ids, names, users, accounts, nodes and clusters."""

from collections.abc import Sequence

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import nodes
from batchjob_stats_db.queries.filters import Filter, cluster_names
from batchjob_stats_db.queries.job_list import Page, list_jobs
from batchjob_stats_db.queries.jobs import AmbiguousIdError, find_jobs, members_of
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.params import InQuery, QueryParams, Word
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.pages.rendering import links
from batchjob_stats_server.pages.rendering.frame import RequestPage

router = APIRouter(include_in_schema=False, route_class=CostlyRoute)

JOB_NAME_DAYS = 90  # how far back to search for a job name, which has no index


_Hit = tuple[str, str, str]
"""What kind of page may be meant, its name and its address."""


class SearchForm(QueryParams):
    """Gives the text to search for."""

    q: Word | None = None


@router.get("/search")
def search(page: RequestPage, form: InQuery[SearchForm]) -> Response:
    """Redirect to the only hit, or else show all of them."""
    text = (form.q or "").strip()
    with page.services.reader.connect() as db:
        hits, jobs, note = _search(db, page.access, text, page.now) if text else ([], [], "")
    ids = {(row["cluster"], row["jobid"]) for row in jobs}
    arrays = {None if row["tool"] else (row["cluster"], row["array_jobid"]) for row in jobs}
    if not hits and len(ids) > 1 and arrays == {(jobs[0]["cluster"], text)}:
        return RedirectResponse(
            links.path("jobs", array_jobid=text, cluster=jobs[0]["cluster"]), 303
        )
    if not hits and len(ids) == 1:
        row = jobs[0]
        return RedirectResponse(links.path("jobs", row["jobid"], cluster=row["cluster"]), 303)
    if len(hits) == 1 and not jobs:
        (_, _, path) = hits[0]
        return RedirectResponse(path, 303)
    log_jobs_seen(page.principal, "jobs", jobs)
    return page.render(
        "search.html", search_text=text, hits=hits, jobs=jobs, note=note,
        job_name_days=JOB_NAME_DAYS,
    )  # fmt: skip


def _search(
    db: Connection, access: Access, text: str, now: int
) -> tuple[list[_Hit], Sequence[RowMapping], str]:
    """Pages that may be meant, jobs, and a message about what is ambiguous."""
    note = ""
    jobs: Sequence[RowMapping]
    try:
        jobs = find_jobs(db, access, text)
    except AmbiguousIdError as error:
        jobs, note = [], f"{error}: enter more characters"
    if not jobs or jobs[0]["array_jobid"] == text:  # the id of an array, also if a task has it
        jobs = members_of(db, access, text) or jobs
    hits = [
        (kind, text, links.path("jobs", **{kind: text}))
        for kind, job_filter in (("user", Filter(user=text)), ("account", Filter(account=text)))
        if _has_jobs(db, access, job_filter)
    ]
    if not jobs:  # text that is a job's id is not searched as a name
        hits += _job_name_hits(db, access, text, now - JOB_NAME_DAYS * DAY, may_contain=not hits)
    hits += [
        ("node", f"{text} ({cluster})", links.path("clusters", cluster, "nodes", text))
        for cluster in nodes.clusters_of(db, access, text)
    ]
    if text in cluster_names(db):
        hits.append(("cluster", text, links.path("clusters", text)))
    return hits, jobs, note


def _has_jobs(db: Connection, access: Access, job_filter: Filter) -> bool:
    return bool(list_jobs(db, access, job_filter, page=Page(1, columns=("id",))).rows)


def _job_name_hits(
    db: Connection, access: Access, text: str, since: int, *, may_contain: bool
) -> list[_Hit]:
    """Jobs with this name, or else, if nothing else matches, with names that contain it.

    Names have no index: if the second query finds nothing, the first one cannot either.
    """
    if not _has_jobs(db, access, Filter(name_contains=text, started_from=since)):
        return []
    if _has_jobs(db, access, Filter(name=text, started_from=since)):
        return [("job name", text, links.path("jobs", name=text))]
    return [("job names with", text, links.path("jobs", name_contains=text))] if may_contain else []
