"""What these dashboards have in common: a choice of cluster, figures at the top, lines below."""

from grafana.generate.dashboards.rows import EMPTY
from grafana.generate.model import Dashboard, Panel, Promql, Thresholds, Variable

C = 'cluster=~"$cluster"'


def rate(series: str) -> str:
    """The growth of a counter per second."""
    return f"rate({series}[$__rate_interval])"


def filled(selector: str) -> str:
    """The part of a file system that is used, by node_exporter."""
    return (
        f"1 - node_filesystem_avail_bytes{{{selector}}} / node_filesystem_size_bytes{{{selector}}}"
    )


def p99(bucket: str, by: str) -> str:
    """Below which 99 of 100 lay, by the labels `by`; `bucket` is a selector of a histogram's."""
    return f"histogram_quantile(0.99, sum by (le, {by}) ({rate(bucket)}))"


def figure(
    title: str, expr: str, unit: str = "none", about: str = "", bounds: Thresholds | None = None
) -> Panel:
    """One number of now."""
    asked = (Promql(expr, title, instant=True),)
    return Panel(title, asked, unit, about, "stat", 4, 4, thresholds=bounds)


def lines(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Panel:
    """Lines of some queries, each with its legend."""
    return Panel(title, tuple(Promql(*each) for each in queries), unit, about)


def dashboard(
    slug: str, title: str, about: str, panels: tuple[Panel, ...], metric: str, *more: Variable
) -> Dashboard:
    """Clusters are those of which there is the metric."""
    clusters = f"label_values({metric}, cluster)"
    chosen = Variable("cluster", "Cluster", clusters, every=True, about=EMPTY)
    return Dashboard(
        slug, title, about, panels, (chosen, *more), refresh="1m", folder="kubernetes"
    )  # fmt: skip
