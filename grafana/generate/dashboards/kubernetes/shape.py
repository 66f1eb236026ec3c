"""What these dashboards share: a choice of cluster, numbers at the top, time series below."""

from grafana.generate.dashboards.rows import EMPTY
from grafana.generate.model import Dashboard, Panel, Promql, Thresholds, Variable

C = 'cluster=~"$cluster"'


def rate(series: str) -> str:
    """The increase of a counter per second."""
    return f"rate({series}[$__rate_interval])"


def filled(selector: str) -> str:
    """The used fraction of a file system, from node_exporter."""
    return (
        f"1 - node_filesystem_avail_bytes{{{selector}}} / node_filesystem_size_bytes{{{selector}}}"
    )


def p99(bucket: str, by: str) -> str:
    """The 99th percentile by the labels `by`; `bucket` is a selector of a histogram's series."""
    return f"histogram_quantile(0.99, sum by (le, {by}) ({rate(bucket)}))"


def figure(
    title: str, expr: str, unit: str = "none", about: str = "", bounds: Thresholds | None = None
) -> Panel:
    """One current number."""
    asked = (Promql(expr, title, instant=True),)
    return Panel(title, asked, unit, about, "stat", 4, 4, thresholds=bounds)


def lines(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Panel:
    """The series of some queries, each with its legend."""
    return Panel(title, tuple(Promql(*each) for each in queries), unit, about)


def dashboard(
    slug: str, title: str, about: str, panels: tuple[Panel, ...], metric: str, *more: Variable
) -> Dashboard:
    """Clusters are those with the metric."""
    clusters = f"label_values({metric}, cluster)"
    chosen = Variable("cluster", "Cluster", clusters, every=True, about=EMPTY)
    return Dashboard(
        slug, title, about, panels, (chosen, *more), refresh="1m", folder="kubernetes"
    )  # fmt: skip
