"""Style sheets, scripts and icon of the pages; Plotly comes from its Python package."""

import gzip
import hashlib
import importlib.util
import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

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


class Asset(NamedTuple):
    """A file that browsers may cache: its address changes with its content."""

    media_type: str
    body: bytes
    gzip_body: bytes
    digest: str


class Assets:
    """All files, read once. Plotly (5 MB) is read when a plot is first shown."""

    def __init__(self) -> None:
        self._files = {
            path.name: _make_asset(path.suffix, path.read_bytes())
            for path in sorted(_STATIC_FOLDER.iterdir())
            if path.suffix in _MEDIA_TYPES
        }

    def get(self, name: str) -> Asset | None:
        return self.plotly if name == _PLOTLY_NAME else self._files.get(name)

    def address(self, name: str) -> str:
        asset = self.get(name)
        return f"/static/{name}?v={asset.digest}" if asset else f"/static/{name}"

    @cached_property
    def plotly(self) -> Asset | None:
        """Plotly's script; None if the package is not installed."""
        spec = importlib.util.find_spec("plotly")
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder) / "package_data" / "plotly.min.js"
            if path.is_file():
                return _make_asset(".js", path.read_bytes())
        return None

    @cached_property
    def plotly_style_ids(self) -> tuple[str, ...]:
        """Ids of elements that keep Plotly from adding inline styles for its maps.

        The style policy of our pages would refuse them with an error; no page draws maps.
        """
        body = self.plotly.body if self.plotly else b""
        style_ids = re.findall(rb'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)', body)
        return tuple(dict.fromkeys(style_id.decode() for style_id in style_ids))


def _make_asset(suffix: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:12]
    return Asset(_MEDIA_TYPES[suffix], body, gzip.compress(body, 6, mtime=0), digest)


router = APIRouter(include_in_schema=False)


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """A file. It needs no sign-in, since the sign-in page uses the style sheet."""
    asset = request.app.state.pages.assets.get(name)
    if asset is None:
        raise Problem(404, f"there is no {name}")
    headers = {"Vary": "Accept-Encoding", **_CACHE_FOREVER}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            asset.gzip_body,
            media_type=asset.media_type,
            headers={"Content-Encoding": "gzip", **headers},
        )
    return Response(asset.body, media_type=asset.media_type, headers=headers)
