"""A week of a person, or of an account: waste, the lines that mend it, energy and emissions."""

from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from batchjob.judgements import unused_cpu_seconds
from batchjob.runtime.formatting import energy, format_duration, mass, share, to_printable
from batchjob.runtime.times import format_date
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, SortOrder, list_jobs
from batchjob_stats_db.queries.operators import with_waste
from batchjob_stats_db.queries.usage import sum_emissions, sum_usage
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import PREFIX, ClusterParams, InQuery, Time, Word
from batchjob_stats_server.api.present import COLUMNS, Change, find_changes
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.report.forms import document_as_html, document_as_text
from batchjob_stats_server.report.model import Advice
from batchjob_stats_server.report.text import Document, ReportLine

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)

_JOBS_READ, _JOBS_SHOWN, _PEOPLE_SHOWN = 300, 5, 20


class DigestQuery(ClusterParams):
    """Whose week, and which. Its days are in UTC."""

    user: Word | None = Field(None, description="Default: the caller, unless there is an account.")
    account: Word | None = None
    until: Time | None = Field(None, description="Day after the week (UTC); default: today.")
    format: Literal["json", "text", "html"] = "json"


class DigestSums(BaseModel):
    """Sums of a person or an account; jobs that were not measured count as used in full."""

    user: str | None
    jobs_ended: float
    jobs_failed: float
    cpu_unused_seconds: float
    gpu_unused_seconds: float
    cpu_efficiency: float | None
    gpu_efficiency: float | None
    energy_joules: float

    def unused(self) -> str:
        """What was left unused, in words."""
        parts = [f"{format_duration(self.cpu_unused_seconds)} of CPU time"]
        if self.gpu_unused_seconds:
            parts.append(f"{format_duration(self.gpu_unused_seconds)} of GPU time")
        return " and ".join(parts)


class Digest(BaseModel):
    """Seven days."""

    cluster: str | None
    user: str | None
    account: str | None
    since: int
    until: int
    total: DigestSums
    people: list[DigestSums] = Field(description="Of an account, who left most unused first.")
    emissions_grams: dict[str, float] = Field(description="By provider; never to be added up.")
    jobs: list[Change]


@router.get(
    "/digest",
    response_model=Digest,
    responses={200: {"content": {"text/plain": {}, "text/html": {}}}},
)
def digest(caller: CurrentCaller, params: InQuery[DigestQuery]) -> Response:
    """The digest of a week, of jobs that the caller may see."""
    until = int(params.until or caller.services.clock()) // DAY * DAY
    user = params.user or (None if params.account else caller.principal.user)
    owners = {"cluster": params.cluster, "account": params.account, "user": user}
    found = _gather(caller, owners, until - 7 * DAY, until)
    if params.format == "json":
        return Response(found.model_dump_json(), media_type="application/json")
    document = _document(found)
    if params.format == "html":
        return Response(document_as_html(document), media_type="text/html")
    return Response(document_as_text(document), media_type="text/plain")


def _gather(caller: Caller, owners: dict[str, Any], since: int, until: int) -> Digest:
    with caller.services.reader.connect() as db:
        by_user = sum_usage(db, caller.access, ["username"], since, until, **owners)
        emissions = sum_emissions(db, caller.access, [], since, until, **owners)
        which = Filter(**owners, ended_from=since, ended_before=until)
        page = Page(_JOBS_READ, columns=COLUMNS)
        rows = list_jobs(db, caller.access, which, SortOrder("end_time"), page).rows
    total = {name: sum(row[name] for row in by_user) for name in schema.DAILY_SUMS}
    people = sorted(map(_sums, by_user), key=lambda each: -unused_cpu_seconds(each.model_dump()))
    return Digest(
        **owners, since=since, until=until, total=_sums({**total, "username": owners["user"]}),
        people=people[:_PEOPLE_SHOWN] if owners["account"] else [],
        emissions_grams={row["provider"]: row["grams"] for row in emissions},
        jobs=find_changes(caller.services, caller.access, rows, _JOBS_SHOWN),
    )  # fmt: skip


def _sums(sums: Any) -> DigestSums:
    row = with_waste(sums)
    joules = row["energy_host_joules"] + row["energy_gpu_joules"]
    fields = {name: row[name] for name in DigestSums.model_fields if name in row}
    return DigestSums(user=row["username"], energy_joules=joules, **fields)


def _document(digest: Digest) -> Document:
    whose = f"account {digest.account}" if digest.account else str(digest.user)
    where = f" on {digest.cluster}" if digest.cluster else ""
    week = f"{format_date(digest.since)} to {format_date(digest.until - 1)} (UTC)"
    total = digest.total
    lines = [
        ReportLine("Jobs", f"{total.jobs_ended:.0f} ended, {total.jobs_failed:.0f} of them failed"),
        ReportLine("Unused", total.unused()),
        *(
            ReportLine(f"{name} efficiency", share(ratio), ratio)
            for name, ratio in (("CPU", total.cpu_efficiency), ("GPU", total.gpu_efficiency))
            if ratio is not None
        ),
        ReportLine("Energy", energy(total.energy_joules)),
        *(
            ReportLine(f"Emissions ({provider})", f"{mass(grams)} CO2e")
            for provider, grams in digest.emissions_grams.items()
        ),
    ]
    people = [
        ReportLine(to_printable(each.user or "not known"), each.unused()) for each in digest.people
    ]
    advice = tuple(
        Advice(
            to_printable(f"job {each.jobid} {each.name} of {each.user}"),
            "job", each.title, each.reason, to_printable(each.step), {},
        )
        for each in digest.jobs
    )  # fmt: skip
    sections = [("Sums", lines), ("People", people)]
    title = f"The week of {to_printable(whose)}{to_printable(where)}"
    return Document(title, week, "", [each for each in sections if each[1]], advice, [])
