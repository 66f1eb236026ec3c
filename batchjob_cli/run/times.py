"""When a run is to start, as people write it."""

import time
from datetime import datetime, timedelta

from batchjob.values import called, duration


@called("TIME")
def start_time(text: str, now: float | None = None) -> float:
    """Epoch seconds of `+90m`, `22:30` (the next one), `2026-04-04T22:30` in local time or a zone.

    Without `now` as seen from the time of the call. Raises ValueError.
    """
    now = time.time() if now is None else now
    if text.startswith("+"):
        return now + duration(text[1:])
    here = datetime.fromtimestamp(now).astimezone()
    try:
        if ":" in text and "-" not in text:
            hour, minute, second = ([int(part) for part in text.split(":")] + [0])[:3]
            at = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (at if at > here else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise ValueError(
            f"expected a time such as 22:30, 2026-04-04T22:30 or +90m, got {text!r}"
        ) from error


@called("TIME")
def past_time(text: str, now: float | None = None) -> float:
    """Epoch seconds of `10m` (ago), `22:30` (the last one), `2026-04-04T22:30`.

    Without `now` as seen from the time of the call. Raises ValueError.
    """
    now = time.time() if now is None else now
    if text[-1:].isalpha() and "T" not in text and "Z" not in text:
        return now - duration(text)
    at = start_time(text, now)
    return at - 86400 if ":" in text and "-" not in text else at


def shown(at: float) -> str:
    """A time in local time, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
