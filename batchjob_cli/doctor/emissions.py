"""Emission factors: the configured providers, and whether they answer."""

import time
from collections.abc import Sequence

from batchjob.runtime.formatting import format_duration
from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from collectors.emissions.provider_poller import ProviderPoller
from collectors.emissions.providers.provider import EmissionFactor
from collectors.emissions.site_factors import site_factors


def _check_factors(node: ExaminedNode) -> Finding | None:
    """Query each configured provider once."""
    options = node.options.get("emissions")
    if options is None:
        return None
    try:
        factors = site_factors(options)
    except SettingsError as error:
        return Finding("warning", str(error))
    for source in factors.pollers:
        source.refresh()
    silent = [source.name for source in factors.pollers if not source.current()]
    shown = "; ".join(map(_format_factor, factors.current())) or "no current factor"
    if not silent:
        return Finding("ok", shown)
    return Finding(
        "warning",
        f"{shown}; no factor from {', '.join(silent)} ({_error_reasons(factors.pollers)})",
        "on nodes without internet access, read factors from batchjob_stats_server: "
        "collector.emissions.server-url",
    )


def _format_factor(factor: EmissionFactor) -> str:
    grams = f"{factor.grams_per_kilowatt_hour:g} g/kWh"
    age = format_duration(factor.age_seconds(time.time()))
    return f"{factor.provider} {factor.zone}: {grams} ({factor.scope}, {age} old)"


def _error_reasons(sources: Sequence[ProviderPoller]) -> str:
    found = {reason for each in sources for reason, count in each.errors().items() if count}
    return ", ".join(sorted(found))


CHECKS = (Check("emission factors", _check_factors),)
