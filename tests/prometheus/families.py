"""The names of all series that batchjob exposes, and the names used in PromQL."""

import re

from prometheus_client.exposition import generate_latest

from batchjob_stats_db.poller.self_metrics import PollerMetrics
from batchjob_stats_server.services import ServerMetrics
from tests.generated_pages import metrics_page

NAME = re.compile(r"(?<![\w:])batchjob[_:][a-z0-9_:]+")


def exposed_names() -> set[str]:
    """The names of the series of exporter, poller and server."""
    names = set(re.findall(r"^\| `(batchjob_\w+)` \|", metrics_page(), re.MULTILINE))
    for registry in (PollerMetrics().registry, ServerMetrics().registry):
        text = generate_latest(registry).decode()
        names |= set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    return names | {f"{name}_{end}" for name in names for end in ("bucket", "count", "sum")}


def names_in(promql: str) -> set[str]:
    """The names of series in an expression; label values in quotes are not names."""
    return set(NAME.findall(re.sub(r'"[^"]*"', '""', promql)))
