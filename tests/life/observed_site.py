"""The interface of a site, simulated or real, as far as views read it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sqlalchemy.engine import Engine


class ObservedSite(Protocol):
    """A site with a server and exporters."""

    url: str
    """URL of the server."""
    cluster: str
    headers: Mapping[str, str]
    """Request headers of an operator."""
    tokens: Mapping[str, str]
    """API tokens by user."""
    reader: Engine
    interval: int
    """Seconds between scrapes."""

    def now(self) -> float:
        """Its time, in epoch seconds."""
        ...

    def scraped_samples(self) -> Sequence[str]:
        """Current sample lines of its nodes' exporters, with the label `instance`."""
        ...
