"""The token of a browser, in a cookie that scripts cannot read and other sites cannot send."""

from fastapi.responses import Response
from starlette.requests import HTTPConnection

from batchjob_stats_server.auth.identity import cookie_name

_PENDING_SECONDS = 600


def keep(connection: HTTPConnection, answer: Response, token: str) -> None:
    """Set the cookie, which is deleted when the browser is closed."""
    name = cookie_name(connection)
    answer.set_cookie(
        name, token, httponly=True, samesite="strict", secure=name.startswith("__Host-")
    )
    answer.headers["Cache-Control"] = "no-store"


def pending_name(connection: HTTPConnection) -> str:
    """The name of the cookie of an unfinished log-in."""
    return f"{cookie_name(connection)}-log-in"


def keep_pending(connection: HTTPConnection, answer: Response, text: str) -> None:
    """Set it for as long as a log-in may take; the provider redirects back with it."""
    name = pending_name(connection)
    answer.set_cookie(
        name, text, max_age=_PENDING_SECONDS, httponly=True, samesite="lax",
        secure=name.startswith("__Host-"),
    )  # fmt: skip
    answer.headers["Cache-Control"] = "no-store"


def forget_pending(connection: HTTPConnection, answer: Response) -> None:
    """Delete it: it is valid for one log-in."""
    name = pending_name(connection)
    answer.delete_cookie(name, httponly=True, samesite="lax", secure=name.startswith("__Host-"))


def forget(connection: HTTPConnection, answer: Response) -> None:
    """Have the browser delete the cookie."""
    name = cookie_name(connection)
    answer.delete_cookie(name, httponly=True, samesite="strict", secure=name.startswith("__Host-"))
