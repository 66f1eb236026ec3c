"""The last answer of a provider on disk, so that it is not queried early after a restart."""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from batchjob.runtime.json_reader import parse_json
from collectors.emissions.providers.provider import Observation


class CachedObservation(NamedTuple):
    """Observations, and when the provider was queried for them (epoch seconds)."""

    queried_at: float
    observations: tuple[Observation, ...]


def _cache_path(directory: str, name: str) -> Path:
    return Path(directory) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.json"


def save(directory: str, name: str, cached: CachedObservation) -> None:
    """Replace the file in one step; raises OSError."""
    path = _cache_path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    rows = [each._asdict() for each in cached.observations]
    new.write_text(
        json.dumps({"asked_at": cached.queried_at, "observations": rows}), encoding="utf-8"
    )
    new.replace(path)


def load(directory: str, name: str) -> CachedObservation | None:
    """The cached observation; None if there is none, or it cannot be read."""
    try:
        document = parse_json(_cache_path(directory, name).read_bytes())
        observations = tuple(_parse_observation(row) for row in document["observations"])
        return CachedObservation(float(document["asked_at"]), observations)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parse_observation(row: dict[str, object]) -> Observation:
    observation = Observation(**row)  # type: ignore[arg-type]  # checked below
    for value, kind in zip(observation, (str, str, str, float, float, bool), strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return observation
