"""Usage of users and accounts, with energy and emissions, by day and in total."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Response
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries import usage as queries
from batchjob_stats_server.api.params import Days, Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.pages.rendering import template_filters
from batchjob_stats_server.pages.rendering.charts import BarSegment, DayChart, day_chart
from batchjob_stats_server.pages.rendering.frame import Shown, costly
from batchjob_stats_server.services import Given

router = APIRouter(include_in_schema=False)

_MOST_DAYS = 400
_MOST_ROWS = 500

Row = Mapping[Any, Any]
By = Literal["user", "account", "cluster"]
Shows = Literal["energy", "cpu", "gpu", "jobs", "emissions"]
_KEYS: dict[By, queries.By] = {"user": "username", "account": "account", "cluster": "cluster"}


_USED = BarSegment("used", "main")
_REST = BarSegment("allocated but not used or not measured", "rest")


class Measure(NamedTuple):
    """What a chart shows for each day."""

    title: str
    parts: tuple[BarSegment, ...]  # from bottom to top
    values: Callable[[Row], tuple[float, ...]]
    write: Callable[[float], str]
    unit: float = 1.0  # unit in which the scale has round numbers


MEASURES = {
    "energy": Measure(
        "Energy",
        (BarSegment("nodes", "main"), BarSegment("GPUs", "other")),
        lambda row: (row["energy_host_joules"], row["energy_gpu_joules"]),
        template_filters.energy,
        3600.0,
    ),
    "cpu": Measure(
        "CPU time",
        (_USED, _REST),
        lambda row: _split(row["cpu_seconds"], row["cpu_allocated_seconds"]),
        template_filters.hours,
        3600.0,
    ),
    "gpu": Measure(
        "GPU time",
        (_USED, _REST),
        lambda row: _split(row["gpu_seconds"], row["gpu_allocated_seconds"]),
        template_filters.hours,
        3600.0,
    ),
    "jobs": Measure(
        "Jobs ended",
        (BarSegment("completed or cancelled", "main"), BarSegment("failed", "bad")),
        lambda row: (row["jobs_ended"] - row["jobs_failed"], row["jobs_failed"]),
        template_filters.number,
    ),
}


class UsageForm(Days):
    """Whose usage, the period, the grouping, and the chart."""

    by: By = "user"
    user: Word | None = None
    account: Word | None = None
    show: Shows | None = None  # None: energy if any was measured, else CPU time


class UsageTableRow(NamedTuple):
    """A row of the table: sums, and grams by provider."""

    sums: Row
    grams: Mapping[str, float]


@router.get("/usage")
@costly
def usage(
    services: Given, page: Shown, access: Caller, which: Annotated[UsageForm, Query()]
) -> Response:
    """Sums of the jobs that the caller may see."""
    since, until = which.window(services.clock())
    since = max(since, until - _MOST_DAYS * DAY)
    with services.reader.connect() as db:
        known = list(dict.fromkeys(row["name"] for row in stats.clusters(db)))
        by: list[queries.By] = [_KEYS[which.by]]
        if len(known) > 1 and which.by != "cluster":
            by.append("cluster")
        lines = _lines(db, access, by, since, until, which)
        whole = _whole(db, access, since, until, which)
        show = which.show or _usual(whole)
        chart = _chart(db, access, since, until, which, show)
    if which.by == "user":
        audit.seen(page.known, "usage", [line.sums for line in lines])
    lines.sort(key=lambda line: line.sums["cpu_allocated_seconds"], reverse=True)
    return page.show(
        "usage.html", which=which, show=show, since=since, until=until, keys=by,
        lines=lines[:_MOST_ROWS],
        left_out=max(0, len(lines) - _MOST_ROWS), whole=whole, chart=chart, clusters=known,
        measures={**{key: each.title for key, each in MEASURES.items()}, "emissions": "Emissions"},
        providers=sorted({name for line in lines for name in line.grams}),
    )  # fmt: skip


def _split(used: float, allocated: float) -> tuple[float, float]:
    return used, max(0.0, allocated - used)


def _lines(
    db: Connection, access: Access, by: Sequence[queries.By], since: int, until: int,
    which: UsageForm,
) -> list[UsageTableRow]:  # fmt: skip
    narrowed: dict[str, Any] = {
        "cluster": which.cluster,
        "account": which.account,
        "user": which.user,
    }
    sums = queries.summed(db, access, by, since, until, **narrowed)
    grams: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in queries.emissions(db, access, by, since, until, **narrowed):
        grams[tuple(row[key] for key in by)][row["provider"]] = row["grams"]
    return [UsageTableRow(row, grams[tuple(row[key] for key in by)]) for row in sums]


def _whole(
    db: Connection, access: Access, since: int, until: int, which: UsageForm
) -> UsageTableRow | None:
    lines = _lines(db, access, [], since, until, which)
    if not lines or lines[0].sums["jobs_started"] is None:
        return None
    return lines[0]


def _usual(whole: UsageTableRow | None) -> Shows:
    """The initial chart: there may be no meter."""
    if whole and not whole.sums["energy_host_joules"] + whole.sums["energy_gpu_joules"]:
        return "cpu"
    return "energy"


def _chart(
    db: Connection, access: Access, since: int, until: int, which: UsageForm, show: Shows
) -> DayChart | None:
    narrowed: dict[str, Any] = {
        "cluster": which.cluster,
        "account": which.account,
        "user": which.user,
    }
    if show == "emissions":
        found = queries.emissions(db, access, ["day"], since, until, **narrowed)
        measure = _emissions_by_day(found)
    else:
        found = queries.summed(db, access, ["day"], since, until, **narrowed)
        measure = MEASURES[show]
    days = {row["day"]: measure.values(row) for row in found}
    nothing = (0.0,) * len(measure.parts)
    rows = [(day, days.get(day, nothing)) for day in range(since, until, DAY)]
    return day_chart(measure.title, measure.parts, rows, measure.write, measure.unit)


def _emissions_by_day(found: Sequence[RowMapping]) -> Measure:
    """Those of the provider with most: values of several providers are never added up."""
    sums: dict[str, float] = defaultdict(float)
    for row in found:
        sums[row["provider"]] += row["grams"]
    provider = max(sums, key=lambda name: sums[name], default="")
    days = {row["day"]: row["grams"] for row in found if row["provider"] == provider}
    return Measure(
        f"Emissions (CO₂ equivalent, {provider})", (BarSegment("emissions", "main"),),
        lambda row: (days.get(row["day"], 0.0),), template_filters.mass,
    )  # fmt: skip
