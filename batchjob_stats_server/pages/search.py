"""A search for ids, names, users, accounts, nodes and clusters."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import nodes, stats
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.ids import AmbiguousIdError, parts_of, written_as
from batchjob_stats_db.queries.paging import numbers
from batchjob_stats_server.api.params import Query as Form
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.pages.rendering import links
from batchjob_stats_server.pages.rendering.frame import Shown, costly
from batchjob_stats_server.services import Given

router = APIRouter(include_in_schema=False)

NAMED_DAYS = 90  # how far back to search for a job name, which has no index


class SearchForm(Form):
    """The text of the search."""

    q: Word | None = None


class Hit(NamedTuple):
    """A page that may be meant."""

    kind: str
    text: str
    path: str


class SearchResults(NamedTuple):
    """The hits, and a message about what is ambiguous."""

    hits: list[Hit]
    jobs: list[RowMapping]
    note: str = ""


@router.get("/search")
@costly
def search(
    services: Given, page: Shown, access: Caller, which: Annotated[SearchForm, Query()]
) -> Response:
    """Redirect to the only hit, or else show all of them."""
    words = (which.q or "").strip()
    with services.reader.connect() as db:
        found = _found(db, access, words, page.now) if words else SearchResults([], [])
    ids = {(row["cluster"], row["jobid"]) for row in found.jobs}
    if not found.hits and len(ids) == 1:
        row = found.jobs[0]
        return _to(links.path("jobs", row["jobid"], cluster=row["cluster"]))
    if len(found.hits) == 1 and not found.jobs:
        return _to(found.hits[0].path)
    audit.seen(page.known, "jobs", found.jobs)
    return page.show("search.html", words=words, found=found, named_days=NAMED_DAYS)


def _to(path: str) -> Response:
    return RedirectResponse(path, 303, {"Cache-Control": "private, no-store"})


def _found(db: Connection, access: Access, words: str, now: int) -> SearchResults:
    note = ""
    try:
        jobs = written_as(db, access, words)
    except AmbiguousIdError as error:
        jobs, note = [], f"{error}: enter more characters"
    jobs = jobs or parts_of(db, access, words)
    hits = [
        Hit(kind, words, links.path("jobs", **{kind: words}))
        for kind, which in (("user", Filter(user=words)), ("account", Filter(account=words)))
        if numbers(db, access, 1, which).ids
    ]
    if not jobs:  # text that is a job's id is not searched as a name
        hits += _names(db, access, words, now - NAMED_DAYS * DAY, alone=not hits)
    hits += [
        Hit("node", f"{words} ({cluster})", links.path("clusters", cluster, "nodes", words))
        for cluster in nodes.clusters_of(db, access, words)
    ]
    if words in {row["name"] for row in stats.clusters(db)}:
        hits.append(Hit("cluster", words, links.path("clusters", words)))
    return SearchResults(hits, jobs, note)


def _names(db: Connection, access: Access, words: str, since: int, *, alone: bool) -> list[Hit]:
    """Jobs with this name, or else, if nothing else matches, with names that contain it.

    Names have no index: if the second query finds nothing, the first one cannot either.
    """
    if not numbers(db, access, 1, Filter(name_contains=words, started_from=since)).ids:
        return []
    if numbers(db, access, 1, Filter(name=words, started_from=since)).ids:
        return [Hit("job name", words, links.path("jobs", name=words))]
    return [Hit("job names with", words, links.path("jobs", name_contains=words))] if alone else []
