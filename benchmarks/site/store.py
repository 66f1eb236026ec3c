"""The time series store of a site: VictoriaMetrics or Prometheus, as it scrapes and answers."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from benchmarks.site.processes import answers, get, wait
from tests.e2e import exporter
from tests.helpers.processes import daemon, free_ports


class Store(NamedTuple):
    """VictoriaMetrics or Prometheus, that scrapes and answers."""

    kind: str
    url: str
    pid: int
    data: Path

    def counts(self) -> dict[str, float]:
        """Samples and questions so far, series of the last hour."""
        own = exporter.parse(get(f"{self.url}/metrics").decode(), 0).samples

        def total(name: str, label: str = "", pattern: str = "") -> float:
            found = own.get(name, [])
            return sum(v for labels, v in found if re.search(pattern, labels.get(label, "")))

        if self.kind == "prometheus":
            return {
                "samples": total("prometheus_tsdb_head_samples_appended_total"),
                "queries": total(
                    "prometheus_http_request_duration_seconds_count",
                    "handler", "^/api/v1/(query|series)",
                ),
                "series": total("prometheus_tsdb_head_series"),
            }  # fmt: skip
        return {
            "samples": total("vm_rows_inserted_total", "type", "promscrape"),
            "queries": total("vm_http_requests_total", "path", "/api/v1/(query|series)"),
            "series": total("vm_cache_entries", "type", "hour_metric_ids"),
        }

    def up(self) -> float:
        """How many nodes were scraped well the last time."""
        return self._value("count(up==1)")

    def scrape_seconds(self) -> float:
        """Within which 99 of 100 nodes were scraped the last time."""
        return self._value("quantile(0.99,scrape_duration_seconds)")

    def _value(self, promql: str) -> float:
        answer = json.loads(get(f"{self.url}/api/v1/query?nocache=1&query={quote(promql)}"))
        result = answer["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0


@contextlib.contextmanager
def store(kind: str, config: Path, folder: Path) -> Iterator[Store]:
    """Start one that scrapes as the file says, and wait for it."""
    (port,) = free_ports(1)
    data = folder / "series"
    argv = {
        "prometheus": [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        "victoria-metrics": [
            "victoria-metrics", f"-promscrape.config={config}", f"-storageDataPath={data}",
            f"-httpListenAddr=127.0.0.1:{port}", "-loggerLevel=WARN",
        ],
    }[kind]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    health = {"prometheus": "/-/ready", "victoria-metrics": "/health"}[kind]
    with daemon(argv, folder / "store.log", patience=60) as process:
        wait(lambda: answers(url + health), kind, {"store": process.pid}, folder)
        yield Store(kind, url, process.pid, data)
