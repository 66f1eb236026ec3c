"""Targets that stand in for those of a Kubernetes cluster's scrape jobs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.helpers.http_server import Response, serving


@contextlib.contextmanager
def serve_metrics(render: Callable[[], str]) -> Iterator[str]:
    """Serve the text that `render()` returns; the target's HOST:PORT."""

    with serving(lambda _: Response(render().encode())) as server:
        yield f"127.0.0.1:{server.port}"


def static_scrape_job(job: Mapping[str, Any], target: str, **labels: str) -> dict[str, Any]:
    """The job with its metric relabeling, but a static target instead of Kubernetes discovery."""
    kept_options = {
        key: job[key]
        for key in ("metric_relabel_configs", "honor_labels", "honor_timestamps")
        if key in job
    }
    relabel_configs = [{"target_label": "instance", "replacement": "n1"}]
    static_configs = [{"targets": [target], "labels": labels}]
    return {"job_name": job["job_name"], "static_configs": static_configs} | kept_options | {
        "relabel_configs": relabel_configs
    }  # fmt: skip
