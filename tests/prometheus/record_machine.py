"""Records the series of alerts on energy and tracked work, from a machine without a scheduler.

    python -m tests.prometheus.record_machine tests/fixtures/alerts/machine.json

An exporter with a BMC (a Redfish service of the tests), a poller of local runs, and Prometheus run
for some minutes beside a program that follows its work, of which a part fails. test_recorded_day.py
replays the file beside the one of record.py. Needs Prometheus; takes five minutes.
"""

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from batchjob import track
from tests.e2e import exporter, prometheus
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import until
from tests.prometheus.record import (
    HEALTHY_SAMPLES,
    INTERVAL,
    alert_series_names,
    recorded_series,
    write,
)
from tests.simulated.redfish_service import RedfishService, link, one_node

REPOSITORY = Path(__file__).parents[2]
CLUSTER = "lab"
POWER = "/redfish/v1/Chassis/1/EnvironmentMetrics"


def record() -> dict[str, Any]:
    """Start everything, and return the series with a value for each interval, null for none."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="record-")))
        service = stack.enter_context(_bmc(folder))
        node = stack.enter_context(exporter.running(*_exporter_flags(folder, service)))
        poller = f"127.0.0.1:{free_ports(1)[0]}"
        tsdb = stack.enter_context(prometheus.serving(_scrape_config(node.address, poller)))
        _track_some_work(folder)
        (folder / "stats_db.yml").write_text(_poller_config(folder, tsdb.url, poller))
        poller_command = (
            sys.executable, "-m", "batchjob_stats_db.main",
            f"--config.file={folder}/stats_db.yml",
        )  # fmt: skip
        environ = {"PYTHONPATH": str(REPOSITORY)}
        stack.enter_context(daemon((*poller_command, "migrate"), folder / "log", environ)).wait()
        stack.enter_context(daemon(poller_command, folder / "log", environ))
        conditions = (
            "count(up == 1) == 2", 'batchjob_stats_db_tracked_work_total{result="failed"}',
            "batchjob_node_energy_deviation_ratio",
        )  # fmt: skip
        for promql in conditions:
            until(lambda promql=promql: tsdb.query(promql), promql, 120, 1.0)
        until_time = time.monotonic() + HEALTHY_SAMPLES * INTERVAL
        while time.monotonic() < until_time:
            service.documents[POWER] = {"PowerWatts": {"Reading": random.uniform(200, 400)}}
            _track_some_work(folder)
            time.sleep(5)
        begin = time.time() - HEALTHY_SAMPLES * INTERVAL
        names = ["up", *alert_series_names("service_alerts.yml")]
        return {
            "interval": INTERVAL,
            "healthy": recorded_series(tsdb, names, begin, HEALTHY_SAMPLES),
        }


@contextlib.contextmanager
def _bmc(folder: Path) -> Iterator[RedfishService]:
    service = RedfishService(one_node(EnvironmentMetrics=link(POWER)))
    service.documents[POWER] = {"PowerWatts": {"Reading": 300.0}}
    (folder / "password").write_text("geheim\n")
    (folder / "password").chmod(0o600)
    service.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    with contextlib.closing(service):
        yield service


def _exporter_flags(folder: Path, service: RedfishService) -> tuple[str, ...]:
    """The flags of the exporter; intervals are its defaults."""
    return (
        "--collector.disable-defaults", "--collector.node", "--collector.energy",
        "--collector.energy.source=redfish", "--collector.redfish",
        f"--collector.redfish.url={service.url}", "--collector.redfish.user=power",
        f"--collector.redfish.password-file={folder}/password",
        f"--collector.redfish.ca-file={folder}/ca.pem",
        f"--path.state={folder}",
    )  # fmt: skip


def _scrape_config(node: str, poller: str) -> dict[str, Any]:
    exporter_target = {"targets": [node], "labels": {"cluster": CLUSTER, "instance": "lab1"}}
    return {
        "global": {"scrape_interval": f"{INTERVAL}s"},
        "scrape_configs": [
            {"job_name": "batchjob_exporter", "static_configs": [exporter_target]},
            {"job_name": "batchjob_stats_db", "static_configs": [{"targets": [poller]}]},
        ],
    }


def _poller_config(folder: Path, tsdb: str, address: str) -> str:
    return yaml.safe_dump(
        {
            "db": {"url": f"sqlite:///{folder}/jobs.db"},
            "web": {"listen-address": address},
            "poll": {"interval": "10s"},
            "tsdb": {"url": tsdb, "scrape-interval": f"{INTERVAL}s", "linger": "5s"},
            "clusters": [{"name": CLUSTER, "sources": {"runs": {"path": f"{folder}/runs"}}}],
        }
    )


def _track_work(folder: Path, name: str, fails: bool = False) -> None:
    with contextlib.suppress(SystemExit), track(name, tool="resize", data=str(folder)):
        sum(range(10**5))
        if fails:
            raise SystemExit(1)


def _track_some_work(folder: Path) -> None:
    """Track four pieces of work, of which one fails."""
    for number in range(4):
        _track_work(folder, f"image {number}", fails=number == 3)


if __name__ == "__main__":
    write(record(), Path(sys.argv[1]))
