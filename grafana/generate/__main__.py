"""Writes all dashboards, and removes the files of deleted ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from grafana.generate.dashboards import (
    cluster,
    energy,
    exporters,
    gpus,
    job,
    job_live,
    job_log,
    jobs,
    node,
    operators,
    usage,
)
from grafana.generate.dashboards.kubernetes import (
    grafana_server,
    hosts,
    kubelet,
    pods,
    victoriametrics,
)
from grafana.generate.document import document
from grafana.generate.model import SUFFIX, Dashboard
from grafana.generate.plugins import INFINITY, PLUGINS, Plugin

DASHBOARDS = (
    *jobs.DASHBOARDS,
    job.DASHBOARD,
    job_live.DASHBOARD,
    *job_log.DASHBOARDS,
    *usage.DASHBOARDS,
    cluster.DASHBOARD,
    node.DASHBOARD,
    energy.DASHBOARD,
    gpus.DASHBOARD,
    operators.DASHBOARD,
    exporters.DASHBOARD,
    hosts.WORKERS,
    kubelet.DASHBOARD,
    pods.DASHBOARD,
    hosts.HOST,
    victoriametrics.DASHBOARD,
    grafana_server.DASHBOARD,
)
FOLDER = Path(__file__).parents[1] / "dashboards"


def files() -> Iterator[tuple[str, str]]:
    """File names below `grafana/dashboards`, and contents."""
    for dashboard in DASHBOARDS:
        if not dashboard.asks_api():
            yield f"{dashboard.folder}/{dashboard.slug}.json", _written(dashboard, INFINITY)
            continue
        for plugin in PLUGINS:
            yield f"{plugin.folder}/{dashboard.slug}.json", _written(dashboard, plugin)


def _written(dashboard: Dashboard, plugin: Plugin) -> str:
    text = json.dumps(document(dashboard, plugin), indent=1, ensure_ascii=False) + "\n"
    return text.replace(SUFFIX, plugin.suffix)


def main() -> int:
    wanted = dict(files())
    for name, text in wanted.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in FOLDER.rglob("*.json"):
        if path.relative_to(FOLDER).as_posix() not in wanted:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
