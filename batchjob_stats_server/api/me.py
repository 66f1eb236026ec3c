"""Who the server takes the caller for."""

from fastapi import APIRouter
from pydantic import BaseModel

from batchjob import __version__
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.auth.identity import Caller, Known

router = APIRouter(prefix=PREFIX)


class AccountName(BaseModel):
    """An account on a cluster."""

    cluster: str
    account: str


class Me(BaseModel):
    """The caller."""

    user: str
    role: str
    via: str
    clusters: list[str]  # empty: the login is theirs on all
    coordinates: list[AccountName]
    sees_all_of: list[str]  # clusters; none is named for viewers and admins of all clusters


class About(BaseModel):
    """The server, and whom it takes the caller for."""

    name: str
    version: str
    user: str


@router.get("")
@router.get("/", include_in_schema=False)
def about(known: Known) -> About:
    """What Grafana's data sources ask when they are saved and tested."""
    return About(name="batchjob", version=__version__, user=known.user)


@router.get("/me")
def me(known: Known, access: Caller) -> Me:
    """The caller's name, role, and the accounts and clusters whose jobs they may see."""
    return Me(
        user=known.user,
        role=known.role,
        via=known.via,
        clusters=list(known.clusters),
        coordinates=[AccountName(**each._asdict()) for each in access.accounts],
        sees_all_of=list(access.clusters),
    )
