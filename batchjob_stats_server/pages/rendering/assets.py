"""Style sheets, scripts and icon of the pages; Plotly comes from its Python package."""

import gzip
import hashlib
import importlib.util
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from batchjob_stats_server.http.problems import Problem

_STATIC_FOLDER = Path(__file__).parents[1] / "static"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CACHE_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_PLOTLY_NAME = "plotly.js"
_NAME = re.compile(r"[a-z_-]+\.[a-z]+")  # no other folder, and no cache of whatever is asked for


Asset = tuple[str, bytes, bytes, str]
"""Media type, content, the same compressed, and a digest, by which browsers may cache it."""


@cache
def find(name: str) -> Asset | None:
    """A file, read when it is first shown; None if there is none, or Plotly is not installed."""
    spec = importlib.util.find_spec("plotly") if name == _PLOTLY_NAME else None
    folders = (spec and spec.submodule_search_locations) or ()
    paths = [Path(folder) / "package_data" / "plotly.min.js" for folder in folders]
    path = next((each for each in [_STATIC_FOLDER / name, *paths] if each.is_file()), None)
    if path is None or path.suffix not in _MEDIA_TYPES:
        return None
    body = path.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:12]
    return _MEDIA_TYPES[path.suffix], body, gzip.compress(body, 6, mtime=0), digest


def address(name: str) -> str:
    asset = find(name)
    return f"/static/{name}?v={asset[3]}" if asset else f"/static/{name}"


@cache
def plotly_style_ids() -> tuple[str, ...]:
    """Ids of elements that keep Plotly from adding inline styles for its maps.

    The style policy of our pages would refuse them with an error; no page draws maps.
    """
    _, body, *_ = find(_PLOTLY_NAME) or ("", b"")
    style_ids = re.findall(rb'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)', body)
    return tuple(dict.fromkeys(style_id.decode() for style_id in style_ids))


router = APIRouter(include_in_schema=False)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """A file. It needs no sign-in, since the sign-in page uses the style sheet."""
    asset = find(name) if _NAME.fullmatch(name) else None
    if asset is None:
        raise Problem(404, f"there is no {name}")
    media_type, body, compressed, _ = asset
    headers = {"Vary": "Accept-Encoding", **_CACHE_FOREVER}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = compressed, {"Content-Encoding": "gzip", **headers}
    return Response(body, media_type=media_type, headers=headers)
