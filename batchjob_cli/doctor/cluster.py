"""The cluster collector: whether its scheduler answers, part by part."""

import time

from batchjob.runtime.background import PostponedError
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.subprocesses import SchedulerError
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from collectors.cluster.collector import find_readers


def _check_cluster(node: ExaminedNode) -> Finding | None:
    """Query each part once, unless the collector is off."""
    options = node.options.get("cluster")
    if options is None:
        return None
    try:
        scheduler, sources = find_readers(options)
    except SettingsError as error:
        return Finding(
            "missing", str(error), "run the collector on a host that has the scheduler's commands"
        )
    answered, silent = [], []
    for part, read in sources._asdict().items():
        if read is None or part in options.without:
            continue
        begun = time.monotonic()
        try:
            read()
        except (SchedulerError, PostponedError) as error:
            silent.append(f"{part}: {error}")
        else:
            answered.append(f"{part} in {time.monotonic() - begun:.1f} s")
    shown = f"{scheduler} reports {', '.join(answered) or 'nothing'}"
    if not silent:
        return Finding("ok", shown)
    return Finding(
        "warning" if answered else "missing",
        f"{shown}; {'; '.join(silent)}",
        "run the command as the exporter's user, or exclude the part with "
        "collector.cluster.without; see docs/cluster.md",
    )


CHECKS = (Check("cluster", _check_cluster),)
