"""Emission factors for exporters, so that only one place queries the providers."""

from fastapi import APIRouter
from pydantic import BaseModel

from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.auth.identity import CurrentCaller
from collectors.emissions.providers.stats_server import factors_document

router = APIRouter(prefix=PREFIX)


class FactorRow(BaseModel):
    """Current emissions of a kilowatt-hour, according to one provider."""

    provider: str
    zone: str
    scope: str
    grams_per_kilowatt_hour: float
    observed_at: str
    estimated: bool


class FactorsReply(BaseModel):
    """The current factors of all configured providers."""

    factors: list[FactorRow]


@router.get("/emission-factors")
def emission_factors(caller: CurrentCaller) -> FactorsReply:
    """Current factors of the configured providers; an empty list if there are none."""
    factors = caller.services.factors.current()
    return FactorsReply.model_validate(factors_document(factors))
