"""The token of a browser, in a cookie that no script can read and no other site sends along."""

from fastapi.responses import Response
from starlette.requests import HTTPConnection

from batchjob_stats_server.identity import cookie_name


def keep(connection: HTTPConnection, answer: Response, token: str) -> None:
    """Set the cookie; it goes when the browser is closed."""
    name = cookie_name(connection)
    answer.set_cookie(
        name, token, httponly=True, samesite="strict", secure=name.startswith("__Host-")
    )
    answer.headers["Cache-Control"] = "no-store"


def forget(connection: HTTPConnection, answer: Response) -> None:
    """Have the browser drop the cookie."""
    name = cookie_name(connection)
    answer.delete_cookie(name, httponly=True, samesite="strict", secure=name.startswith("__Host-"))
