"""What is not about jobs: the server, the caller, and the emission factors in use."""

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from batchjob import __version__
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.http.problems import Problem
from collectors.emissions.providers.stats_server import factors_document

router = APIRouter(prefix=PREFIX)


_SIMPLE_JSON = (
    "the SimpleJSON protocol of simpod-json-datasource and grafana-simple-json-datasource is not "
    "served: use the data source yesoreyeram-infinity-datasource, marcusolsson-json-datasource, or "
    "for /api/v1/prometheus Grafana's own prometheus"
)


def refuse_simple_json(request: Request) -> None:
    """Fail the connection test of data sources whose protocol is not served.

    Their test is a GET with the content type of the POSTs that would follow (GrafanaJsonDatasource
    0.6, src/DataSource.ts; simple-json-datasource, src/datasource.ts). No other data source sends a
    content type without a body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        raise Problem(400, _SIMPLE_JSON)


class AccountName(BaseModel):
    """An account on a cluster."""

    cluster: str
    account: str


class Me(BaseModel):
    """The user who makes the request, with their role and rights."""

    user: str
    role: str
    via: str
    clusters: list[str]  # empty: the login is the caller's on all clusters
    coordinates: list[AccountName]
    sees_all_of: list[str]  # clusters; empty for viewers and admins of all clusters


class About(BaseModel):
    """The server, and the identity of the caller."""

    name: str
    version: str
    user: str


@router.get("", dependencies=[Depends(refuse_simple_json)])
@router.get("/", include_in_schema=False, dependencies=[Depends(refuse_simple_json)])
def about(caller: CurrentCaller) -> About:
    """Requested by Grafana's data sources when they are saved and tested."""
    return About(name="batchjob", version=__version__, user=caller.principal.user)


@router.get("/me")
def me(caller: CurrentCaller) -> Me:
    """The caller's name, role, and the accounts and clusters whose jobs they may see."""
    principal, access = caller.principal, caller.access
    return Me(
        user=principal.user,
        role=principal.role,
        via=principal.via,
        clusters=list(principal.clusters),
        coordinates=[AccountName(**each._asdict()) for each in access.accounts],
        sees_all_of=list(access.clusters),
    )


class FactorRow(BaseModel):
    """Current emissions of a kilowatt-hour, according to one provider."""

    provider: str
    zone: str
    scope: str
    grams_per_kilowatt_hour: float
    observed_at: str
    estimated: bool


@router.get("/emission-factors")
def emission_factors(caller: CurrentCaller) -> dict[str, list[FactorRow]]:
    """Current factors of the configured providers; an empty list if there are none.

    They are for exporters, so that only one place queries the providers.
    """
    return factors_document(caller.services.factors.current())
