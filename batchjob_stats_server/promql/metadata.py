"""Metadata of metrics, as far as everybody may see it."""

from collections.abc import Iterator
from typing import Any

from batchjob.runtime.json_reader import parse_json

# Only our own: the names of other metrics would reveal what else a site measures.
_OWN_PREFIX = "batchjob_"
_KEYS = ("type", "help", "unit")


def known_metrics(
    answer: bytes, everything: bool, limit_per_metric: int | None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Metrics and their metadata from the Prometheus API's answer.

    Without `everything`, only those of this project. An unexpected answer contains nothing.
    """
    try:
        metrics: Any = parse_json(answer)["data"]
    except (ValueError, KeyError, TypeError):
        return
    if not isinstance(metrics, dict):
        return
    for name, entries in sorted(metrics.items()):
        if (everything or name.startswith(_OWN_PREFIX)) and isinstance(entries, list):
            chosen = [each for each in entries[:limit_per_metric] if isinstance(each, dict)]
            yield name, [_to_strings(each) for each in chosen]


def _to_strings(each: dict[str, Any]) -> dict[str, str]:
    return {key: str(each.get(key, "")) for key in _KEYS}
