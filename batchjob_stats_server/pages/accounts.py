"""The page of an account: usage, fair share, limits, and members."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from batchjob_stats_db.database.access import Access, ClusterAccount
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_db.queries.stats import AccountRecord, account_record
from batchjob_stats_server.api.params import QueryParams, Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage, costly
from batchjob_stats_server.pages.usage import MEASURES, measure_chart

router = APIRouter(include_in_schema=False)

_CHART_DAYS = 30

FAIR_SHARE_TITLES = {
    "shares_ratio": "Share of its parent's shares",
    "usage_ratio": "Share of its parent's recent usage",
    "fairshare_level": "Fair share: shares divided by use",
    "fairshare_ratio": "Fair-share factor",
}
"""The fair-share values that the scheduler reports of an account, and their titles."""


@router.get("/clusters/{cluster}/accounts/{account}")
@costly
def account(
    page: RequestPage, cluster: Annotated[Word, Path()], account: Annotated[Word, Path()],
    _query: Annotated[QueryParams, Query()],
) -> Response:  # fmt: skip
    """One account, for its members and coordinators and for users who may see all jobs.

    Other members are listed only for coordinators and users who may see all jobs.
    """
    access = page.access
    since, until = day_of(page.now) - (_CHART_DAYS - 1) * DAY, day_of(page.now) + DAY
    sees_all = access.sees_all(cluster) or ClusterAccount(cluster, account) in access.accounts
    with page.services.reader.connect() as db:
        if cluster not in stats.cluster_names(db):
            raise Problem(404, f"there is no cluster {cluster}")
        record = account_record(db, cluster, account)
        user_sums = usage_queries.sum_usage(
            db, access, ["username"], since, until, cluster=cluster, account=account
        )
        if not (user_sums or (record and (sees_all or _is_member(record, access, cluster)))):
            raise Problem(404, f"account {account} does not exist, or is not yours to see")
        day_sums = usage_queries.sum_usage(
            db, access, ["day"], since, until, cluster=cluster, account=account
        )
    audit.log_jobs_seen(page.principal, f"account {account}", user_sums)
    members = _member_rows(record, access, cluster, user_sums, sees_all)
    return page.render(
        "account.html", cluster=cluster, account=account, record=record, sees_all=sees_all,
        members=members, since=since, until=until, limits=_limits(record),
        chart=measure_chart(MEASURES["cpu"], day_sums, since, until),
        fair_shares=_fair_shares(page, cluster, account), fair_share_titles=FAIR_SHARE_TITLES,
    )  # fmt: skip


def _is_member(record: AccountRecord, access: Access, cluster: str) -> bool:
    names = {row["username"] for row in record.members}
    return any(own.user in names for own in access.users if own.cluster in ("", cluster))


def _member_rows(
    record: AccountRecord | None,
    access: Access,
    cluster: str,
    usage_rows: Sequence[Any],
    sees_all: bool,
) -> list[dict[str, Any]]:
    """Members and other users, with roles and sums, the most CPU time first."""
    own_users = {each.user for each in access.users if each.cluster in ("", cluster)}
    sums = {row["username"]: row for row in usage_rows}
    roles: dict[str, list[str]] = {name: [] for name in sums}
    for row in record.members if record else ():
        if sees_all or row["username"] in own_users:
            roles.setdefault(row["username"], []).append(row["role"])
    members = [
        {"user": name, "roles": sorted(member_roles, reverse=True), "sums": sums.get(name)}
        for name, member_roles in roles.items()
    ]

    def sort_key(each: dict[str, Any]) -> tuple[float, str]:
        usage_rows = each["sums"]
        return (-usage_rows["cpu_allocated_seconds"] if usage_rows else 0.0, each["user"])

    return sorted(members, key=sort_key)


def _limits(record: AccountRecord | None) -> list[tuple[str, str]]:
    limits = record.limits.split() if record else []
    return [(name, value) for name, _, value in (word.partition("=") for word in limits)]


def _fair_shares(page: PageRenderer, cluster: str, account: str) -> dict[str, float]:
    reading = page.services.readings.of(cluster, page.services.clock())
    return dict(reading.shares.get(account, {})) if reading else {}
