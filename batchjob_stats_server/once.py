"""A parameter that has one value is given once: of two, which one would count?"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from batchjob_stats_server.problems import Problem


async def once(request: Request) -> None:
    """Refuse a repeated parameter that is no list; for all routes."""
    names = Counter(name for name, _ in request.query_params.multi_items())
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        single = set(_single(request.scope["route"].dependant))
        if wrong := [name for name in repeated if name in single]:
            raise Problem(422, f"{wrong[0]}: expected once")


def _single(dependant: Dependant) -> Iterator[str]:
    """Names of the parameters of a route that are no lists."""
    for each in dependant.query_params:
        kind: Any = each.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                if get_origin(field.annotation) is not list:
                    yield field.alias or name
        elif get_origin(kind) is not list:
            yield each.alias
    for inner in dependant.dependencies:
        yield from _single(inner)
