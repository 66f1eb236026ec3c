"""The dashboards, one module for each subject."""

from grafana.generate.dashboards import (
    cluster,
    energy,
    exporters,
    gpus,
    job,
    job_live,
    jobs,
    kubernetes,
    node,
    operators,
    usage,
)

DASHBOARDS = (
    *jobs.DASHBOARDS,
    job.DASHBOARD,
    job_live.DASHBOARD,
    *usage.DASHBOARDS,
    cluster.DASHBOARD,
    node.DASHBOARD,
    energy.DASHBOARD,
    gpus.DASHBOARD,
    operators.DASHBOARD,
    exporters.DASHBOARD,
    *kubernetes.DASHBOARDS,
)
