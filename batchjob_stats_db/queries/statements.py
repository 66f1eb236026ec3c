"""Caches statements: SQLAlchemy builds most of them more slowly than SQLite runs them.

A statement whose text never changes is built by a function with `functools.cache`, and what differs
from one query to the next is a parameter of it. One that depends on the user is cached here.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from batchjob_stats_db.database.access import Access

_CACHE_SIZE = 256

P = ParamSpec("P")
T = TypeVar("T")


def cached_by_access(
    build: Callable[Concatenate[Access, P], T],
) -> Callable[Concatenate[Access, P], T]:
    """Cache the latest results of a function that builds statements; arguments must be hashable.

    Users who may see many accounts have long statements, which are built each time.
    """
    build_cached = cast(
        Callable[Concatenate[Access, P], T], functools.lru_cache(_CACHE_SIZE)(build)
    )

    def built(access: Access, /, *given: P.args, **named: P.kwargs) -> T:
        return (build_cached if access.is_small() else build)(access, *given, **named)

    return built
