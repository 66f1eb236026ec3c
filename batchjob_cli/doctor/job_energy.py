"""Which of the meters will be the node's."""

from batchjob_cli.doctor import bmc, power
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from collectors.power.meter import BEST_FIRST

_METERS = {check.name: check for check in (*power.CHECKS, *bmc.CHECKS)}


def _source(node: ExaminedNode) -> Finding | None:
    """The energy collector's choice: by configuration, else the best one that answers."""
    options = node.options.get("energy")
    if node.options and options is None:
        return None
    said = options.source if options else "auto"
    asked = [name for name in BEST_FIRST if name in _METERS and _is_on(name, node)]
    found = [name for name in asked if _answers(name, node)]
    if said not in ("auto", "psys"):
        found = [name for name in found if name == said]
    if not found:
        return Finding(
            "missing",
            "no meter responds: no job energy" if said == "auto" else f"{said} does not respond",
            "see the meters above; Redfish and a BMC over the network must be configured",
        )
    if found[0] == "rapl":
        return Finding("warning", "from rapl: only processors and memory, not the whole node")
    return Finding("ok", f"from {found[0]} (of {', '.join(found)})")


def _is_on(name: str, node: ExaminedNode) -> bool:
    """Whether a collector is on; a BMC is queried only if it is enabled explicitly."""
    return name in node.options or (not node.options and name in ("cray", "hwmon", "rapl"))


def _answers(name: str, node: ExaminedNode) -> bool:
    finding = _METERS[name].look(node)
    return finding is not None and finding.result == "ok"


CHECKS = (Check("job energy", _source),)
