"""Which scheduler is on this machine, and how its records can be had here."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.runtime.subprocesses import SchedulerError, call

_TIMEOUT = 10.0
_PBS_CONFIG = Path("/etc/pbs.conf")


class DetectedCluster(NamedTuple):
    """A scheduler, as people call it, its cluster's name and the poller's sources for it."""

    title: str
    cluster: str
    sources: Mapping[str, Mapping[str, Any]]


def scheduler(local: str) -> DetectedCluster | None:
    """The scheduler whose commands are here and answer; None on a machine without one.

    `local` is the name of the machine's own cluster, which the scheduler's may not have.
    """
    for command, ask in _WAYS.items():
        if shutil.which(command):
            found = ask()
            if found is not None:
                same = found.cluster == local
                return found._replace(cluster=f"{local}-{found.title.lower()}") if same else found
    return None


def _slurm() -> DetectedCluster | None:
    name = _line_value(("scontrol", "show", "config"), "ClusterName")
    return DetectedCluster("Slurm", name, {"sacct": {}, "sacctmgr": {}}) if name else None


def _pbs() -> DetectedCluster | None:
    name = _line_value(("qstat", "-B", "-f"), "server_host")
    if not name:
        return None
    logs = _pbs_home() / "server_priv/accounting"
    if os.access(logs, os.R_OK | os.X_OK):
        return DetectedCluster("PBS", name, {"pbs_log": {"path": str(logs)}})
    return DetectedCluster("PBS", name, {"qstat": {}})


def _pbs_home() -> Path:
    try:
        lines = _PBS_CONFIG.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    homes = [line.partition("=")[2].strip() for line in lines if line.startswith("PBS_HOME=")]
    return Path(homes[-1] if homes else "/var/spool/pbs")


def _lsf() -> DetectedCluster | None:
    answer = _answer(("lsid",))
    names = [line.split()[-1] for line in answer if line.startswith("My cluster name is")]
    return DetectedCluster("LSF", names[0], {"bjobs": {}}) if names else None


_WAYS: Mapping[str, Callable[[], DetectedCluster | None]] = {
    "scontrol": _slurm,
    "qstat": _pbs,
    "lsid": _lsf,
}


def _line_value(argv: tuple[str, ...], name: str) -> str:
    """The value of a line `name = value`."""
    for line in _answer(argv):
        key, equals, value = line.partition("=")
        if equals and key.strip() == name:
            return value.strip()
    return ""


def _answer(argv: tuple[str, ...]) -> list[str]:
    """The lines a command prints; none where it fails: the scheduler is not in use here then."""
    try:
        return call(argv, timeout=_TIMEOUT).stdout.decode("utf-8", "replace").splitlines()
    except SchedulerError:
        return []
