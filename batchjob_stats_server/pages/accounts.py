"""The page of an account: usage, fair share, limits, and members."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.engine import Connection

from batchjob_stats_db.database.access import Access, AccountOn
from batchjob_stats_db.days import DAY, day_of
from batchjob_stats_db.queries import stats
from batchjob_stats_db.queries import usage as usage_queries
from batchjob_stats_db.queries.accounts import AccountRecord, account_record
from batchjob_stats_server.api.params import Word
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.clusters import NoForm
from batchjob_stats_server.pages.rendering.charts import BarSegment, DayChart, day_chart
from batchjob_stats_server.pages.rendering.frame import Shown, costly
from batchjob_stats_server.pages.rendering.template_filters import hours
from batchjob_stats_server.services import Given, Services

router = APIRouter(include_in_schema=False)

_DAYS = 30
_PARTS = (BarSegment("used", "main"), BarSegment("allocated but not used or not measured", "rest"))

SHARES = {
    "shares_ratio": "Share of its parent's shares",
    "usage_ratio": "Share of its parent's recent usage",
    "fairshare_level": "Fair share: shares divided by use",
    "fairshare_ratio": "Fair-share factor",
}
"""What the scheduler tells of an account's fair share, and how a page calls it."""


@router.get("/clusters/{cluster}/accounts/{account}")
@costly
def account(
    services: Given, page: Shown, access: Caller,
    cluster: Annotated[Word, Path()], account: Annotated[Word, Path()],
    _which: Annotated[NoForm, Query()],
) -> Response:  # fmt: skip
    """For members, coordinators, and those who may see all; only the latter two see members."""
    since, until = day_of(page.now) - (_DAYS - 1) * DAY, day_of(page.now) + DAY
    whole = access.sees_all(cluster) or AccountOn(cluster, account) in access.accounts
    with services.reader.connect() as db:
        if cluster not in {row["name"] for row in stats.clusters(db)}:
            raise Problem(404, f"there is no cluster {cluster}")
        record = account_record(db, cluster, account)
        used = usage_queries.summed(
            db, access, ["username"], since, until, cluster=cluster, account=account
        )
        if not (used or (record and (whole or _belongs(record, access, cluster)))):
            raise Problem(404, f"there is no account {account} that you may see")
        chart = _chart(db, access, since, until, cluster, account)
    audit.seen(page.known, f"account {account}", used)
    return page.show(
        "account.html", cluster=cluster, account=account, record=record, whole=whole,
        people=_people(record, access, cluster, used, whole), chart=chart, since=since,
        until=until, limits=_limits(record), shares=_shares(services, cluster, account),
        share_names=SHARES,
    )  # fmt: skip


def _belongs(record: AccountRecord, access: Access, cluster: str) -> bool:
    names = {row["username"] for row in record.members}
    return any(own.user in names for own in access.users if own.cluster in ("", cluster))


def _people(
    record: AccountRecord | None, access: Access, cluster: str, used: Sequence[Any], whole: bool
) -> list[dict[str, Any]]:
    """Members and other users, with roles and sums, the most CPU time first."""
    own = {each.user for each in access.users if each.cluster in ("", cluster)}
    sums = {row["username"]: row for row in used}
    roles: dict[str, list[str]] = {name: [] for name in sums}
    for row in record.members if record else ():
        if whole or row["username"] in own:
            roles.setdefault(row["username"], []).append(row["role"])
    found = [
        {"user": name, "roles": sorted(held, reverse=True), "sums": sums.get(name)}
        for name, held in roles.items()
    ]

    def most(each: dict[str, Any]) -> tuple[float, str]:
        used = each["sums"]
        return (-used["cpu_allocated_seconds"] if used else 0.0, each["user"])

    return sorted(found, key=most)


def _chart(
    db: Connection, access: Access, since: int, until: int, cluster: str, account: str
) -> DayChart | None:
    found = usage_queries.summed(
        db, access, ["day"], since, until, cluster=cluster, account=account
    )
    days = {
        row["day"]: (
            row["cpu_seconds"], max(row["cpu_allocated_seconds"] - row["cpu_seconds"], 0.0)
        )
        for row in found
    }  # fmt: skip
    rows = [(day, days.get(day, (0.0, 0.0))) for day in range(since, until, DAY)]
    return day_chart("CPU time", _PARTS, rows, hours, 3600.0)


def _limits(record: AccountRecord | None) -> list[tuple[str, str]]:
    words = record.limits.split() if record else []
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


def _shares(services: Services, cluster: str, account: str) -> dict[str, float]:
    found = services.readings.of(cluster, services.clock()) if services.readings else None
    return dict(found.shares.get(account, {})) if found else {}
