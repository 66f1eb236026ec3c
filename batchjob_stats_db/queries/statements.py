"""Statements that are built once: SQLAlchemy builds most of them more slowly than SQLite runs them.

A statement whose text never changes is built by a function with `functools.cache`, and what differs
from one query to the next is a parameter of it. One that depends on the user is cached here.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from batchjob_stats_db.database.access import Access

_REMEMBERED = 256

P = ParamSpec("P")
T = TypeVar("T")


def remembered(make: Callable[Concatenate[Access, P], T]) -> Callable[Concatenate[Access, P], T]:
    """The same function with its latest results cached; all arguments must be hashable.

    Users who may see many accounts have long statements, which are built each time.
    """
    made_once = cast(Callable[Concatenate[Access, P], T], functools.lru_cache(_REMEMBERED)(make))

    def made(access: Access, /, *given: P.args, **named: P.kwargs) -> T:
        return (made_once if access.few() else make)(access, *given, **named)

    return made
