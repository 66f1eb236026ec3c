"""Times as LSF's commands print them."""

import calendar
import re
import time

_SUFFIX = re.compile(r" [LEX]$")
_DAY = 86_400


def lsf_time(text: str, now: int) -> int | None:
    """Epoch seconds of `Apr 12 18:20:00 2026 L`, UTC; without a year the last that is not to come.

    ` L` (run limit), ` E` and ` X` (estimates) may stand behind it.
    """
    text = " ".join(_SUFFIX.sub("", text).split())
    if text in ("", "-"):
        return None
    for form in ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y"):
        try:
            return calendar.timegm(time.strptime(text, form))
        except ValueError:
            continue
    year = time.gmtime(now).tm_year
    for form in ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y"):
        for candidate in (year, year - 1, year - 2, year - 3, year - 4):  # 29 February
            try:
                at = calendar.timegm(time.strptime(f"{text} {candidate}", form))
            except ValueError:
                continue
            if at <= now + _DAY:
                return at
    raise ValueError(f"expected a time such as Apr 12 18:20:00 2026, got {text[:40]!r}")
