"""Which form of an answer a client wants, by its header `Accept` (RFC 9110, 12.5.1)."""

from collections.abc import Mapping


def preferred(accept: str, forms: Mapping[str, str], otherwise: str) -> str:
    """The name of the form with the highest quality, the first of equals.

    `forms`: name by media type. A client that takes anything, or none of these, gets `otherwise`.
    """
    wanted: list[tuple[float, int, str]] = []
    for place, each in enumerate(accept.split(",")):
        media_type, *parameters = (part.strip().lower() for part in each.split(";"))
        name = otherwise if media_type == "*/*" else forms.get(media_type)
        quality = next((_quality(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
        if name and quality > 0:
            wanted.append((-quality, place, name))
    return min(wanted, default=(0.0, 0, otherwise))[2]


def _quality(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
