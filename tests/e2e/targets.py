"""Targets that stand in for those of a Kubernetes cluster's scrape jobs."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def serve_metrics(render: Callable[[], str]) -> Iterator[str]:
    """Serve the text that `render()` returns; the target's HOST:PORT."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = render().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
