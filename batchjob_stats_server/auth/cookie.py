"""Cookies: the session of a browser, which scripts cannot read and other sites cannot send."""

from fastapi.responses import Response
from starlette.requests import HTTPConnection

from batchjob_stats_server.auth.identity import cookie_name

_PENDING_SECONDS = 600


def set_session(connection: HTTPConnection, answer: Response, session: str) -> None:
    """Set the cookie with a session, which is deleted when the browser is closed."""
    name = cookie_name(connection)
    answer.set_cookie(
        name, session, httponly=True, samesite="strict", secure=name.startswith("__Host-")
    )
    answer.headers["Cache-Control"] = "no-store"


def pending_name(connection: HTTPConnection) -> str:
    """The name of the cookie of an unfinished log-in."""
    return f"{cookie_name(connection)}-log-in"


def set_pending(connection: HTTPConnection, answer: Response, text: str) -> None:
    """Set the cookie of a log-in, which the browser sends when the provider redirects back."""
    name = pending_name(connection)
    answer.set_cookie(
        name, text, max_age=_PENDING_SECONDS, httponly=True, samesite="lax",
        secure=name.startswith("__Host-"),
    )  # fmt: skip
    answer.headers["Cache-Control"] = "no-store"


def delete_pending(connection: HTTPConnection, answer: Response) -> None:
    """Delete the cookie of a log-in, which is valid once."""
    name = pending_name(connection)
    answer.delete_cookie(name, httponly=True, samesite="lax", secure=name.startswith("__Host-"))


def delete_session(connection: HTTPConnection, answer: Response) -> None:
    """Delete the cookie with the session."""
    name = cookie_name(connection)
    answer.delete_cookie(name, httponly=True, samesite="strict", secure=name.startswith("__Host-"))
