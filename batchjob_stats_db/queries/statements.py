"""Statements that are made once: SQLAlchemy makes most of them more slowly than SQLite answers.

A statement whose text never changes is made by a function with `functools.cache`, and what differs
from one question to the next is a parameter of it. One that depends on who asks is remembered here.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from batchjob_stats_db.database.access import Access

_REMEMBERED = 256

P = ParamSpec("P")
T = TypeVar("T")


def remembered(make: Callable[Concatenate[Access, P], T]) -> Callable[Concatenate[Access, P], T]:
    """The same function, which makes what was asked for lately once; all it is given is hashable.

    Whoever may see many accounts has long statements: these are made each time.
    """
    made_once = cast(Callable[Concatenate[Access, P], T], functools.lru_cache(_REMEMBERED)(make))

    def made(access: Access, /, *given: P.args, **named: P.kwargs) -> T:
        return (made_once if access.few() else make)(access, *given, **named)

    return made
