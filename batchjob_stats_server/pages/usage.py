"""Usage of users and accounts, with energy and emissions, by day and in total."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Response
from markupsafe import Markup
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database.access import Access, ClusterAccount
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import usage as queries
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_db.queries.stats import AccountRecord, account_record
from batchjob_stats_server.api.answers import CostlyRoute
from batchjob_stats_server.api.params import InQuery, QueryParams, SumsParams, Word
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering import template_filters
from batchjob_stats_server.pages.rendering.charts import Segments, day_chart
from batchjob_stats_server.pages.rendering.frame import RequestPage
from batchjob_stats_server.report.model import Row

router = APIRouter(include_in_schema=False, route_class=CostlyRoute)

_MAX_DAYS = 400
_MAX_ROWS = 500

OwnerKind = Literal["user", "account", "cluster"]
ChartName = Literal["energy", "cpu", "gpu", "jobs", "emissions"]
_GROUP_COLUMNS: dict[OwnerKind, queries.By] = {
    "user": "username",
    "account": "account",
    "cluster": "cluster",
}


_USED_AND_UNUSED = {"used": "main", "allocated but not used or not measured": "rest"}


class Measure(NamedTuple):
    """A quantity that a chart shows for each day."""

    title: str
    segments: Segments
    values: Callable[[Row], tuple[float, ...]]
    format_value: Callable[[float], str]
    unit: float = 1.0  # unit in which the scale has round numbers


MEASURES = {
    "energy": Measure(
        "Energy",
        {"nodes": "main", "GPUs": "other"},
        lambda row: (row["energy_host_joules"], row["energy_gpu_joules"]),
        template_filters.energy,
        3600.0,
    ),
    "cpu": Measure(
        "CPU time",
        _USED_AND_UNUSED,
        lambda row: _used_and_unused(row["cpu_seconds"], row["cpu_allocated_seconds"]),
        template_filters.hours,
        3600.0,
    ),
    "gpu": Measure(
        "GPU time",
        _USED_AND_UNUSED,
        lambda row: _used_and_unused(row["gpu_seconds"], row["gpu_allocated_seconds"]),
        template_filters.hours,
        3600.0,
    ),
    "jobs": Measure(
        "Jobs ended",
        {"completed or cancelled": "main", "failed": "bad"},
        lambda row: (row["jobs_ended"] - row["jobs_failed"], row["jobs_failed"]),
        template_filters.number,
    ),
}


class UsageForm(SumsParams):
    """Selects the usage, its grouping, and the chart."""

    by: OwnerKind = "user"
    show: ChartName | None = None  # None: energy if any was measured, else CPU time


@router.get("/usage")
def usage(page: RequestPage, form: InQuery[UsageForm]) -> Response:
    """Sums of the jobs that the caller may see."""
    since, until = form.window(page.now)
    since = max(since, until - _MAX_DAYS * DAY)
    with page.services.reader.connect() as db:
        clusters = cluster_names(db)
        several = len(clusters) > 1 and form.by != "cluster"
        groups: tuple[OwnerKind, ...] = (form.by, "cluster") if several else (form.by,)
        group_columns = [_GROUP_COLUMNS[name] for name in groups]
        rows = _query_rows(db, page.access, group_columns, since, until, form)
        totals = _query_rows(db, page.access, [], since, until, form)
        has_total = totals and totals[0]["sums"]["jobs_started"] is not None
        total = totals[0] if has_total else None
        sums = total["sums"] if total else {}
        no_energy = total and not sums["energy_host_joules"] + sums["energy_gpu_joules"]
        show: ChartName = form.show or ("cpu" if no_energy else "energy")
        chart = _chart(db, page.access, since, until, form, show)
    rows.sort(key=lambda row: row["sums"]["cpu_allocated_seconds"], reverse=True)
    return page.render(
        "usage.html", form=form, show=show, since=since, until=until, groups=groups,
        keys=group_columns,
        rows=rows[:_MAX_ROWS],
        left_out=max(0, len(rows) - _MAX_ROWS), total=total, chart=chart, clusters=clusters,
        measures={**{key: each.title for key, each in MEASURES.items()}, "emissions": "Emissions"},
        providers=sorted({name for row in rows for name in row["grams"]}),
    )  # fmt: skip


def _used_and_unused(used: float, allocated: float) -> tuple[float, float]:
    return used, max(0.0, allocated - used)


def _query_rows(
    db: Connection, access: Access, group_columns: Sequence[queries.By], since: int, until: int,
    form: UsageForm,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the table: sums, and by provider grams with the CPU time that they are of."""
    filters = form.owners()
    sums = queries.sum_usage(db, access, group_columns, since, until, **filters)
    emissions: dict[tuple[str, ...], list[RowMapping]] = defaultdict(list)
    for row in queries.sum_emissions(db, access, group_columns, since, until, **filters):
        emissions[tuple(row[key] for key in group_columns)].append(row)
    rows = []
    for row in sums:
        of_row = emissions[tuple(row[key] for key in group_columns)]
        grams = {each["provider"]: each["grams"] for each in of_row}
        measured = {
            each["provider"]: each["measured_energy_cpu_allocated_seconds"] for each in of_row
        }
        rows.append({"sums": row, "grams": grams, "measured": measured})
    return rows


def _chart(
    db: Connection, access: Access, since: int, until: int, form: UsageForm, show: ChartName
) -> Markup | None:
    filters = form.owners()
    if show == "emissions":
        day_rows = queries.sum_emissions(db, access, ["day"], since, until, **filters)
        measure = _emissions_by_day(day_rows)
    else:
        day_rows = queries.sum_usage(db, access, ["day"], since, until, **filters)
        measure = MEASURES[show]
    return measure_chart(measure, day_rows, since, until)


def measure_chart(
    measure: Measure, day_rows: Sequence[RowMapping], since: int, until: int
) -> Markup | None:
    """A chart of a quantity in sums of days; None if it is zero on all of them."""
    values = {row["day"]: measure.values(row) for row in day_rows}
    return day_chart(
        "h-days", measure.title, measure.segments, values, since, until,
        measure.format_value, measure.unit,
    )  # fmt: skip


def _emissions_by_day(emission_rows: Sequence[RowMapping]) -> Measure:
    """Emissions by the provider with the highest total; providers are never added up."""
    sums: dict[str, float] = defaultdict(float)
    for row in emission_rows:
        sums[row["provider"]] += row["grams"]
    provider = max(sums, key=lambda name: sums[name], default="")
    days = {row["day"]: row["grams"] for row in emission_rows if row["provider"] == provider}
    return Measure(
        f"Emissions (CO₂ equivalent, {provider})", {"emissions": "main"},
        lambda row: (days.get(row["day"], 0.0),), template_filters.mass,
    )  # fmt: skip


_CHART_DAYS = 30


@router.get("/clusters/{cluster}/accounts/{account}")
def account(
    page: RequestPage, cluster: Word, account: Word, _query: InQuery[QueryParams]
) -> Response:
    """One account, for its members and coordinators and for users who may see all jobs.

    Other members are listed only for coordinators and users who may see all jobs.
    """
    access = page.access
    since, until = day_of(page.now) - (_CHART_DAYS - 1) * DAY, day_of(page.now) + DAY
    sees_all = access.sees_all(cluster) or ClusterAccount(cluster, account) in access.accounts
    with page.services.reader.connect() as db:
        if cluster not in cluster_names(db):
            raise Problem(404, f"there is no cluster {cluster}")
        record = account_record(db, cluster, account)
        user_sums = queries.sum_usage(
            db, access, ["username"], since, until, cluster=cluster, account=account
        )
        names = {row["username"] for row in record.members} if record else set()
        is_member = any(own.user in names for own in access.users if own.cluster in ("", cluster))
        if not (user_sums or (record and (sees_all or is_member))):
            raise Problem(404, f"account {account} does not exist, or is not yours to see")
        day_sums = queries.sum_usage(
            db, access, ["day"], since, until, cluster=cluster, account=account
        )
    log_jobs_seen(page.principal, f"account {account}", user_sums)
    members = _member_rows(record, access, cluster, user_sums, sees_all)
    reading = page.services.readings.of(cluster, page.services.clock())
    limits = (word.partition("=") for word in (record.limits.split() if record else ()))
    shares = reading.shares.get(account, {}) if reading else {}
    return page.render(
        "account.html", cluster=cluster, account=account, record=record, sees_all=sees_all,
        members=members, since=since, until=until,
        limits=[(name, value) for name, _, value in limits],
        chart=measure_chart(MEASURES["cpu"], day_sums, since, until),
        fair_shares=shares,
    )  # fmt: skip


def _member_rows(
    record: AccountRecord | None, access: Access, cluster: str, usage_rows: Sequence[Any],
    sees_all: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Members and other users, with roles and sums, the most CPU time first."""
    own_users = {each.user for each in access.users if each.cluster in ("", cluster)}
    sums = {row["username"]: row for row in usage_rows}
    roles: dict[str, list[str]] = {name: [] for name in sums}
    for row in record.members if record else ():
        if sees_all or row["username"] in own_users:
            roles.setdefault(row["username"], []).append(row["role"])
    members: list[dict[str, Any]] = [
        {"user": name, "roles": sorted(member_roles, reverse=True), "sums": sums.get(name)}
        for name, member_roles in sorted(roles.items())
    ]
    members.sort(key=lambda each: -each["sums"]["cpu_allocated_seconds"] if each["sums"] else 0.0)
    return members
