"""Renders the nodes of a cluster as cells with the number of their jobs.

These are functions, not templates, since a cluster may have thousands of nodes.
"""

from collections.abc import Iterable, Mapping

from markupsafe import Markup, escape

from batchjob_stats_server.cluster_readings import NodeState
from batchjob_stats_server.pages.rendering import fragments, links


def busy_nodes(cluster: str, jobs: Mapping[str, int]) -> Markup:
    """Nodes with jobs."""
    return fragments.trusted_html(
        "".join(_cell(cluster, node, count) for node, count in jobs.items())
    )


def all_nodes(cluster: str, nodes: Iterable[NodeState], jobs: Mapping[str, int]) -> Markup:
    """All nodes, in the colours of their states."""
    return fragments.trusted_html(
        "".join(
            _cell(cluster, each.node, jobs.get(each.node, 0), each.colour, _title(each))
            for each in nodes
        )
    )


def _title(node: NodeState) -> str:
    reason = f": {node.reason}" if node.reason else ""
    return ", ".join((node.state, *node.flags)) + reason


def _cell(cluster: str, node: str, jobs: int, colour: str = "", title: str = "") -> str:
    class_attribute, spoken_title, job_count = "", "", ""
    if colour:
        class_attribute = f' class="{colour}"'
        spoken_title = f'<span class="visually-hidden">, {escape(title)}</span>'
    if jobs:
        job_count = f' <small>{jobs}<span class="visually-hidden"> jobs</span></small>'
    title_attribute = f' title="{escape(title)}"' if title else ""
    path = escape(links.path("clusters", cluster, "nodes", node))
    content = f"{escape(node)}{spoken_title}{job_count}"
    return f'<li{class_attribute}><a href="{path}"{title_attribute}>{content}</a></li>'
