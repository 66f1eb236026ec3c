"""What a client accepts: Accept and Accept-Encoding (RFC 9110 section 12)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Accepted(NamedTuple):
    """One entry of the header, in lower case. Weight 0: not acceptable."""

    value: str
    parameters: Mapping[str, str]
    weight: float


def accepted(header: str) -> Iterator[Accepted]:
    """The entries in the header's order; whatever is malformed has weight 0."""
    for entry in header.lower().split(","):
        value, *rest = (part.strip() for part in entry.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        weight = _weight(parameters.pop("q", "1"))
        yield Accepted(value, parameters, weight)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0
