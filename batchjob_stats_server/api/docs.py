"""The API's documentation as Swagger UI, from an installed package: nothing is downloaded.

Open to everybody, like the OpenAPI document: it contains no data.
"""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.http.problems import Problem

router = APIRouter(include_in_schema=False)

_PACKAGE = "fastapi_offline"

_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>batchjob: API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="documentation" data-document="{PREFIX.strip("/")}/openapi.json"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

_START_SCRIPT = """const place = document.getElementById("documentation");
SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
});
"""

# Swagger UI uses style attributes and images in data URLs, but only scripts from files.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _File(NamedTuple):
    kind: str
    content: bytes


@cache
def _file(name: str) -> _File | None:
    """A file of the page; None for any other name."""
    if name == "start.js":
        return _File("text/javascript", _START_SCRIPT.encode())
    kinds = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
    if name not in kinds:
        return None
    return _File(kinds[name], files(_PACKAGE).joinpath("static", name).read_bytes())


@router.get("/docs")
def docs() -> HTMLResponse:
    """The page."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/{name}")
def docs_file(name: str, request: Request) -> Response:
    """One of its files."""
    file = _file(name)
    if file is None:
        raise Problem(404, f"{request.url.path} is not there")
    return Response(
        file.content, media_type=file.kind, headers={"Cache-Control": "public, max-age=3600"}
    )
