"""Help: the chapters of the documentation that users need."""

from typing import Literal

from fastapi import APIRouter, Response

from batchjob_stats_server.api.params import InQuery, QueryParams
from batchjob_stats_server.pages.rendering.frame import RequestPage

router = APIRouter(include_in_schema=False)


@router.get("/help")
@router.get("/help/{chapter}")
def chapter(
    page: RequestPage, _query: InQuery[QueryParams], chapter: Literal["user", "report"] = "user"
) -> Response:
    """A chapter, which `python -m tests.help_pages` has made a template."""
    return page.render("help.html", chapter=chapter)
