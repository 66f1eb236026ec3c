"""A program: one IPMI-over-LAN session to one BMC, on behalf of the process that started it.

The first line of standard input says where to log in: `{"host", "port", "user", "password",
"privilege"}`; every further line is a request: `{"netfn", "command", "data", "lun"}`. Each is
answered by one line: `{"answer": hex}`, completion code first, or `{"error": reason, "text": ...}`.

pyghmi can hang for minutes where a BMC is silent and cannot recover in the same process afterwards,
so it runs here, where it can be killed. When standard input ends, it logs out (BMCs have few
session slots) and the program exits, even if the library hangs.
"""

import json
import os
import queue
import sys
import threading
import time
from typing import Any

from batchjob.runtime.json_reader import parse_json

_LOGOUT_SECONDS = 1.0


def main() -> None:
    """Log in, then answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the library's output out of the answers
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    session, answer = _log_in(parse_json(lines.get()))
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        if session is None or not (line := lines.get()):
            break
        answer = _query(session, parse_json(line))
    if session is not None:
        session.ipmi_session.logout()


def _read_lines(lines: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    time.sleep(_LOGOUT_SECONDS)
    os._exit(1)  # the main thread hangs in the library


def _log_in(login: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    try:
        from pyghmi.exceptions import PyghmiException
        from pyghmi.ipmi.command import Command
    except ImportError as error:
        return None, {"error": "session", "text": f"{error}: install batchjob-monitoring[ipmi]"}
    try:
        session = Command(
            bmc=login["host"],
            port=login["port"],
            userid=login["user"],
            password=login["password"],
            privlevel=login["privilege"],
        )
    except (PyghmiException, OSError) as error:
        return None, {"error": _login_error_reason(str(error).lower()), "text": f"login: {error}"}
    return session, {"answer": "00"}


def _query(session: Any, request: dict[str, Any]) -> dict[str, str]:
    from pyghmi.exceptions import IpmiException

    try:
        answer = session.raw_command(
            netfn=request["netfn"],
            command=request["command"],
            data=bytes.fromhex(request["data"]),
            rslun=request["lun"],
        )
    except IpmiException as error:
        return {"error": "session", "text": str(error)}
    return {"answer": bytes((answer["code"], *answer["data"])).hex()}


def _login_error_reason(text: str) -> str:
    """pyghmi reports errors only as text: that of the RMCP+ status code, or its own."""
    refusal_words = ("password", "unauthorized", "integrity check", "privilege", "role", "name")
    return "authentication" if any(word in text for word in refusal_words) else "session"


if __name__ == "__main__":
    main()
