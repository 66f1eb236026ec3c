"""Where a watched site keeps what was measured: a Prometheus, or the exporters' sample files."""

import contextlib
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from batchjob_stats_db.samples.folder import files_of, folder_of
from tests.e2e import exporter, prometheus, victoriametrics
from tests.e2e.watched_jobs import WatchedJob
from tests.grafana import stack
from tests.helpers.processes import free_ports

_RECEIVES = "--web.enable-remote-write-receiver"


class Source(StrEnum):
    """Where measurements come from."""

    PROMETHEUS = "prometheus"
    AGENT = "agent"
    """Scrapes, and sends to Prometheus through a gate, which can be closed for a while."""
    SAMPLES = "samples"
    """Files of the nodes, in one directory."""


class Switch:
    """Something that runs, and can be stopped and started again."""

    def __init__(self, starting: Callable[[], Any]) -> None:
        self._starting = starting
        self._running = contextlib.ExitStack()
        self.on()

    def on(self) -> None:
        """Start it."""
        self._running.enter_context(self._starting())

    def off(self) -> None:
        """Stop it."""
        self._running.close()


class Measurements(Protocol):
    """What was measured of the site's jobs."""

    def times(self, run: WatchedJob) -> Mapping[str, Sequence[float]]:
        """When samples of a run were taken, by node; raises OSError while it is away."""
        ...

    def is_ended(self, run: WatchedJob) -> bool:
        """Whether it has what the exporters said last of an ended run."""
        ...


class InPrometheus(NamedTuple):
    """See Measurements."""

    server: prometheus.Server

    def times(self, run: WatchedJob) -> Mapping[str, Sequence[float]]:
        asked = f'batchjob_job_cpu_seconds_total{{jobid="{run.jobid}",mode="user"}}[1h]'
        return {
            series["metric"]["instance"]: [at for at, _ in series["values"] if at >= run.start]
            for series in self.server.get("query", query=asked)["result"]
        }

    def is_ended(self, run: WatchedJob) -> bool:
        ended = f'batchjob_job_end_time_seconds{{jobid="{run.jobid}"}}'
        return len(self.server.query(f"last_over_time({ended}[1h])")) == run.nodes

    def is_scraped(self, since: float, exporters: int) -> bool:
        """Whether it has all exporters' answers of after this time."""
        found = self.server.query('timestamp(up{job="batchjob_exporter"} == 1)')
        return sum(sample.value > since for sample in found) == exporters


class InFiles(NamedTuple):
    """See Measurements."""

    directory: Path

    def times(self, run: WatchedJob) -> Mapping[str, Sequence[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for sample in self._samples(run):
            if "cpu_user_seconds" in sample and sample["time"] >= run.start:
                found[sample["node"]].append(sample["time"])
        return found

    def is_ended(self, run: WatchedJob) -> bool:
        ended = {sample["node"] for sample in self._samples(run) if "end_time_seconds" in sample}
        return len(ended) == run.nodes

    def _samples(self, run: WatchedJob) -> Iterator[Mapping[str, Any]]:
        for path in files_of(folder_of(self.directory, run.jobid)):
            # What is being written may end anywhere.
            with contextlib.suppress(EOFError, ValueError, zlib.error), gzip.open(path) as lines:
                for line in lines:
                    yield json.loads(line)


def scraping(
    folder: Path, exporters: Mapping[str, exporter.Target], poller: str, server: str, interval: int
) -> dict[str, Any]:
    """All exporters have one address here, so their targets bear the names of the nodes."""
    made = stack.prometheus_configuration(folder, {}, poller, server)
    made["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{interval}s")
    (jobs,) = (job for job in made["scrape_configs"] if job["job_name"] == "batchjob_exporter")
    for shipped in ("file_sd_configs", "relabel_configs"):
        jobs.pop(shipped)
    jobs["static_configs"] = [
        {"targets": [target.address], "labels": {"cluster": stack.CLUSTER, "instance": node}}
        for node, target in exporters.items()
    ]
    return made


def prometheus_at(
    port: int, folder: Path, scraped: Mapping[str, Any], made: contextlib.ExitStack
) -> Switch:
    """A Prometheus; where it scrapes nothing, it is sent to."""
    data = folder / "prometheus"
    data.mkdir()
    flags = [] if scraped else [_RECEIVES]
    switch = Switch(lambda: prometheus.at(port, data, scraped, *flags))
    made.callback(switch.off)
    return switch


@contextlib.contextmanager
def agent(folder: Path, scraped: Mapping[str, Any], store: str) -> Iterator[Switch]:
    """An agent scrapes, and keeps what it cannot send; the gate through which it sends."""
    (port,) = free_ports(1)
    config = folder / "agent.yml"
    config.write_text(yaml.safe_dump({key: scraped[key] for key in ("global", "scrape_configs")}))
    flags = [
        f"-promscrape.config={config}", "-promscrape.config.strictParse=false",
        f"-remoteWrite.tmpDataPath={folder / 'queue'}", "-remoteWrite.queues=1",
        f"-remoteWrite.url=http://127.0.0.1:{port}/api/v1/write",
        f"-remoteWrite.bearerToken={stack.SECRET}",
    ]  # fmt: skip
    gate = Switch(lambda: victoriametrics.auth_proxy(folder / "gate", store, stack.SECRET, port))
    try:
        with victoriametrics.agent(flags, folder / "agent.log"):
            yield gate
    finally:
        gate.off()
