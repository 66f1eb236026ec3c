"""Citizens that turn hostile, four and more of each kind, and what each of them does.

`act(site, dice)` does one hostile thing; with other dice, another one of its kind. What must hold
at once is asserted there. Whether the figures of others have changed is looked at afterwards, by
`Site.work`. A file has the citizens of one kind.
"""

from tests.security.citizens import (
    audits,
    believed_by_id,
    cookies,
    exceptions,
    files,
    grammar,
    impossible_numbers,
    messages,
    neighbours,
    waits,
)
from tests.security.citizens.citizen import CITIZENS

__all__ = [
    "CITIZENS",
    "audits",
    "believed_by_id",
    "cookies",
    "exceptions",
    "files",
    "grammar",
    "impossible_numbers",
    "messages",
    "neighbours",
    "waits",
]
