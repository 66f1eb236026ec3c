"""Emission factors, handed on to exporters, so that one place alone asks the providers."""

from fastapi import APIRouter
from pydantic import BaseModel

from batchjob_stats_server.identity import Known
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.services import Given
from collectors.emissions.server import document

router = APIRouter(prefix=PREFIX)


class FactorRow(BaseModel):
    """What a kilowatt-hour emits now, by one provider's word."""

    provider: str
    zone: str
    scope: str
    grams_per_kilowatt_hour: float
    observed_at: str
    estimated: bool


class Factors(BaseModel):
    """All factors there are now."""

    factors: list[FactorRow]


@router.get("/emission-factors")
def emission_factors(services: Given, _known: Known) -> Factors:
    """The factors of the configured providers; an empty list when none has one now."""
    observations = services.factors.observations() if services.factors else ()
    return Factors.model_validate(document(observations))
