"""What a site must offer, simulated or real, for its places to be read."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sqlalchemy.engine import Engine


class Looked(Protocol):
    """A site that people look at."""

    url: str
    """Of the server."""
    cluster: str
    headers: Mapping[str, str]
    """Of somebody who may see all."""
    tokens: Mapping[str, str]
    """By user."""
    reader: Engine
    interval: int
    """Seconds between scrapes."""

    def now(self) -> float:
        """Its time, in epoch seconds."""
        ...

    def scraped(self) -> Sequence[str]:
        """What its nodes' exporters show now: samples as text, with their `instance`."""
        ...
