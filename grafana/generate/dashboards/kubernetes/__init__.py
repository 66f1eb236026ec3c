"""What runs beside batchjob in a Kubernetes cluster: the series of the operator's scrape jobs.

`deploy/victoriametrics/operator/scrape.yml` defines which are stored. The same queries serve hosts
without Kubernetes for the parts that run there: node_exporter, VictoriaMetrics, Grafana.
"""

from grafana.generate.dashboards.kubernetes import (
    grafana_server,
    host,
    kubelet,
    pods,
    victoriametrics,
    workers,
)

DASHBOARDS = (
    workers.DASHBOARD,
    kubelet.DASHBOARD,
    pods.DASHBOARD,
    host.DASHBOARD,
    victoriametrics.DASHBOARD,
    grafana_server.DASHBOARD,
)
