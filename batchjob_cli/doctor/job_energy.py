"""Which of the meters the energy collector will use."""

from batchjob_cli.doctor import bmc, power
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from collectors.power.meter import METER_RANKING

_METERS = {check.name: check for check in (*power.CHECKS, *bmc.CHECKS)}


def _check_source(node: ExaminedNode) -> Finding | None:
    """The energy collector's choice: by configuration, else the best one that answers."""
    options = node.options.get("energy")
    if node.options and options is None:
        return None
    configured_source = options.source if options else "auto"
    enabled = [name for name in METER_RANKING if name in _METERS and _is_enabled(name, node)]
    responding = [name for name in enabled if _is_responding(name, node)]
    if configured_source not in ("auto", "psys"):
        responding = [name for name in responding if name == configured_source]
    if not responding:
        return Finding(
            "missing",
            "no meter responds: no job energy"
            if configured_source == "auto"
            else f"{configured_source} does not respond",
            "see the meters above; Redfish and a BMC over the network must be configured",
        )
    if responding[0] == "rapl":
        return Finding("warning", "from rapl: only processors and memory, not the whole node")
    return Finding("ok", f"from {responding[0]} (of {', '.join(responding)})")


def _is_enabled(name: str, node: ExaminedNode) -> bool:
    """Whether a collector is on; a BMC is queried only if it is enabled explicitly."""
    return name in node.options or (not node.options and name in ("cray", "hwmon", "rapl"))


def _is_responding(name: str, node: ExaminedNode) -> bool:
    finding = _METERS[name].examine(node)
    return finding is not None and finding.result == "ok"


CHECKS = (Check("job energy", _check_source),)
