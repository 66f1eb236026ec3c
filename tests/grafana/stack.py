"""All programs of batchjob on loopback, with data: exporters, Prometheus, poller and server.

Two exporters read recorded machines with Slurm jobs; one of these has a running RAPL meter and
NVIDIA's driver. A third queries a Slurm that prints recorded output. Prometheus runs with the
configuration and rules of `prometheus/`, and Grafana's headers are those of `grafana/provisioning`.
"""

import contextlib
import json
import lzma
import os
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.conftest import unpack
from tests.e2e import exporter, prometheus
from tests.fake_nvml.library import FakeNvml, compile_into
from tests.grafana.dashboard_client import GrafanaClient
from tests.helpers.processes import daemon
from tests.helpers.waiting import scaled, until
from tests.simulated import commands
from tests.simulated.powercap import Powercap

REPOSITORY = Path(__file__).parents[2]
RECORDED = REPOSITORY / "tests/fixtures/cluster/slurm-24.11"
CLUSTER = "c1"
SECRET = "only Grafana and the server know"
OPERATOR = "root"
# Users of the recorded machines, whose names are unknown. The first machine has data on pressure,
# input and output, energy and GPUs; the second on memory.
USER, OTHER_USER, THIRD_USER = "2001", "2002", "20001"
RUNNING_JOB, ENDED_JOB, WAITING_JOB, THIRD_USERS_JOB = "25", "26", "27", "1"
# All groups of job metrics on one machine; the default ones on the other.
JOB_METRIC_GROUPS = (
    "cpu", "throttling", "memory", "memory-detail", "faults", "pressure", "io", "process-io",
    "processes", "open-files", "network",
)  # fmt: skip
SCRAPES = 12  # of each target, before anything is queried


class Stack(NamedTuple):
    """The running programs."""

    grafana: GrafanaClient
    tsdb: prometheus.Server
    started_at: float


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Stack]:
    """Start everything, and wait until there is data."""
    started_at = time.time()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_first_machine_exporter(folder))
        second = stack.enter_context(_second_machine_exporter(folder))
        scheduler = stack.enter_context(_scheduler_exporter(folder))
        poller, server = stack.enter_context(_reserved_addresses(2))
        targets = {CLUSTER: [first.address, second.address, scheduler.address]}
        tsdb = stack.enter_context(
            prometheus.serving(prometheus_configuration(folder, targets, poller, server))
        )
        jobs = folder / "jobs.jsonl"
        jobs.write_text("".join(f"{json.dumps(each)}\n" for each in _job_records(int(started_at))))
        sources = {"jsonl": {"path": str(jobs)}}
        config = write_configuration(folder, tsdb.url, sources, poller, server)
        stack.enter_context(
            running_program("batchjob_stats_db", config / "stats_db.yml", migrate=True)
        )
        stack.enter_context(running_program("batchjob_stats_server", config / "server.yml"))
        grafana = GrafanaClient(f"http://{server}", data_source_headers)
        until(lambda: _is_scraped(tsdb, 5), f"{SCRAPES} scrapes of all targets", 120, 1)
        with jobs.open("a") as file:
            for job, state in (
                (_other_users_job(started_at), "COMPLETED"),
                (_third_users_job(started_at), "OUT_OF_MEMORY"),
            ):
                ended = {**job, "state": state, "end_time": int(time.time())}
                file.write(json.dumps(ended) + "\n")
        until(lambda: _is_measured(grafana, ENDED_JOB), "usage of the ended job", 60, 1)
        until(lambda: _is_measured(grafana, RUNNING_JOB), "usage of the running job", 60, 1)
        until(lambda: api_rows(grafana, "/usage?by=day"), "sums of the day", 60, 1)
        yield Stack(grafana, tsdb, started_at)


@contextlib.contextmanager
def _reserved_addresses(count: int) -> Iterator[list[str]]:
    """Loopback addresses which no connection or server of another process gets.

    Programs listen there nevertheless, with SO_REUSEADDR, because these sockets do not.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _is_scraped(tsdb: prometheus.Server, targets: int) -> bool:
    """Whether Prometheus has scraped all targets often enough for rates and recording rules."""
    return len(tsdb.query(f"sum_over_time(up[5m]) >= {SCRAPES}")) == targets


def _job_record(started_at: int, jobid: str, user: str, account: str) -> dict[str, Any]:
    return {
        "jobid": jobid, "user": user, "uid": int(user), "account": account, "state": "RUNNING",
        "partition": "batch", "qos": "normal", "name": "train", "submit_time": started_at - 900,
        "eligible_time": started_at - 900, "start_time": started_at, "allocated_cpus": 2,
        "allocated_nodes": 1, "allocated_gpus": 2, "allocated_memory_bytes": 1 << 30,
        "time_limit_seconds": 3600, "node_list": "node01",
        "nodes": [{"node": "node01", "cpus": 2, "gpus": 2}],
        "steps": [{"step": "0", "state": "RUNNING", "state_word": "RUNNING", "name": "train"}],
    }  # fmt: skip


def _other_users_job(started_at: float) -> dict[str, Any]:
    return _job_record(int(started_at), ENDED_JOB, OTHER_USER, "chemistry")


def _third_users_job(started_at: float) -> dict[str, Any]:
    job = _job_record(int(started_at), THIRD_USERS_JOB, THIRD_USER, "physics")
    return job | {"allocated_gpus": 0, "node_list": "node001", "nodes": ["node001"]}


def _job_records(started_at: int) -> list[dict[str, Any]]:
    waiting = {"state": "PENDING", "start_time": None, "reason": "Resources", "steps": []}
    return [
        _job_record(started_at, RUNNING_JOB, USER, "physics"),
        _other_users_job(started_at),
        _third_users_job(started_at),
        _job_record(started_at, WAITING_JOB, USER, "physics") | waiting,
    ]


@contextlib.contextmanager
def _first_machine_exporter(folder: Path) -> Iterator[exporter.Target]:
    root = folder / "node01"
    host = unpack("slurm-22.05-v2-r3-a", root)
    zone = Powercap(root).zone("intel-rapl:0", "package-0")
    driver = root / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: 570.86.15\n")
    prolog = folder / "prolog"
    prolog.mkdir()
    for gpu in ("0", "1"):
        (prolog / gpu).write_text(f"{RUNNING_JOB}\n")
    library = folder / "nvml"
    library.mkdir()
    compile_into(library)
    fake = FakeNvml(folder / "nvml.keys")
    fake.add_gpus(2)
    environ = (f"LD_LIBRARY_PATH={library}", f"FAKE_NVML={fake.path}")
    flags = (
        f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}",
        f"--path.cgroupfs={host.cgroupfs}", "--collector.energy.source=rapl",
        "--collector.energy.interval=1s",
        "--collector.energy.idle-watts=20", "--collector.gpu.interval=1s",
        f"--collector.gpu.job-files={prolog}", "--collector.emissions",
        "--collector.emissions.provider=owid:FR",
        *(f"--collector.jobs.metrics={group}" for group in JOB_METRIC_GROUPS),
    )  # fmt: skip
    with (
        _called_repeatedly(lambda: zone.run(60 * 0.25)),
        exporter.running(*flags, inside=("env", *environ)) as target,
    ):
        yield target


@contextlib.contextmanager
def _second_machine_exporter(folder: Path) -> Iterator[exporter.Target]:
    host = unpack("slurm-22.05-v2-uml", folder / "node001")
    flags = (
        f"--path.procfs={host.procfs}", f"--path.sysfs={host.sysfs}",
        f"--path.cgroupfs={host.cgroupfs}",
    )  # fmt: skip
    with exporter.running(*flags) as target:
        yield target


@contextlib.contextmanager
def _scheduler_exporter(folder: Path) -> Iterator[exporter.Target]:
    programs = folder / "bin"
    programs.mkdir()

    def read_recording(name: str) -> bytes:
        path = RECORDED / name
        return path.read_bytes() if path.exists() else lzma.decompress(
            path.with_name(f"{name}.xz").read_bytes()
        )  # fmt: skip

    commands.install(
        programs,
        "scontrol",
        {
            "--json -a show nodes": read_recording("scontrol_show_nodes.json"),
            "-o show licenses": b"LicenseName=matlab Total=9 Used=2 Free=7 Reserved=0 Remote=no\n",
        },
    )
    commands.install(programs, "squeue", {"--json": read_recording("squeue.json")})
    commands.install(programs, "sdiag", {"--json": read_recording("sdiag.json")})
    commands.install(programs, "sshare", {"-P": read_recording("sshare.txt")})
    path = f"PATH={programs}:{os.environ['PATH']}"
    flags = (
        "--collector.disable-defaults", "--collector.cluster",
        "--collector.cluster.scheduler=slurm",
        "--collector.cluster.interval=1s",
    )  # fmt: skip
    with exporter.running(*flags, inside=("env", path)) as target:
        yield target


@contextlib.contextmanager
def _called_repeatedly(function: Any) -> Iterator[None]:
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(0.25):
            function()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def prometheus_configuration(
    folder: Path, targets: Mapping[str, list[str]], poller: str, server: str
) -> dict[str, Any]:
    """The configuration of `prometheus/` with these targets."""
    shipped = REPOSITORY / "prometheus"
    config: dict[str, Any] = yaml.safe_load((shipped / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    config["rule_files"] = [str(shipped / each) for each in config["rule_files"]]
    nodes = [{"targets": values, "labels": {"cluster": name}} for name, values in targets.items()]
    (folder / "targets.json").write_text(json.dumps(nodes))
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    exporters = jobs["batchjob_exporter"]
    exporters["file_sd_configs"] = [{"files": [str(folder / "targets.json")]}]
    exporters["relabel_configs"].pop()  # adds the default port
    del exporters["metric_relabel_configs"]  # one exporter serves the node and the cluster
    jobs["batchjob_stats_db"]["static_configs"] = [{"targets": [poller]}]
    jobs["batchjob_stats_server"]["static_configs"] = [{"targets": [server]}]
    here = ("batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server")
    config["scrape_configs"] = [jobs[name] for name in here]
    return config


def write_configuration(
    folder: Path, tsdb: str, sources: Mapping[str, Any], poller: str, server: str
) -> Path:
    """Write configuration files of poller and server into the folder, and return it."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    store = {"url": tsdb, "scrape-interval": "1s", "linger": "10s", "refresh": "5s"}
    db = {"url": f"sqlite:///{folder}/jobs.db"}
    (folder / "stats_db.yml").write_text(
        yaml.safe_dump(
            {
                "db": db,
                "tsdb": store,
                "web": {"listen-address": poller},
                "poll": {"interval": "1s", "rollup-interval": "1s"},
                "clusters": [{"name": CLUSTER, "sources": dict(sources)}],
            }
        )
    )
    (folder / "server.yml").write_text(
        yaml.safe_dump(
            {
                "db": db,
                "tsdb": store,
                "web": {"listen-address": server},
                "auth": {
                    "trusted-peer": ["127.0.0.1"],
                    "secret-file": str(secret),
                    "admin": [OPERATOR],
                },
                "emissions": {"provider": ["owid:FR"]},
                "logs": {"url": "https://logs.example.org/?n={node}&t={start}"},
                "limit": {"user-rate": 200},  # tests open dashboards faster than users do
            }
        )
    )
    return folder


@contextlib.contextmanager
def running_program(
    module: str,
    config: Path,
    migrate: bool = False,
    inside: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run one of the programs with a configuration file; its log is printed at the end.

    `inside` is a prefix of its command line.
    """
    argv = [*inside, sys.executable, "-m", f"{module}.main", "--config.file", str(config)]
    environ = {**os.environ, **(environ or {}), "PYTHONPATH": str(REPOSITORY)}
    log = config.with_suffix(".log")
    try:
        if migrate:
            with daemon([*argv, "migrate"], log, environ) as process:
                assert process.wait(scaled(60)) == 0, log.read_text()
        with daemon(argv, log, environ):
            yield
    finally:
        print(log.read_text()[-20000:])


def data_source_headers(kind: str, login: str) -> Mapping[str, str]:
    """The headers of this type of data source, by the provisioning file and `send_user_header`."""
    path = REPOSITORY / "grafana/provisioning/datasources/batchjob.yml"
    (source,) = (
        each for each in yaml.safe_load(path.read_text())["datasources"] if each["type"] == kind
    )
    headers = {} if kind.startswith("yesoreyeram") else {"X-Grafana-User": login}
    for number in range(1, 10):
        name = source["jsonData"].get(f"httpHeaderName{number}")
        if name:
            value = source["secureJsonData"][f"httpHeaderValue{number}"]
            headers[name] = SECRET if value.startswith("$__file") else _with_login(value, login)
    return headers


def _with_login(value: str, login: str) -> str:
    return value.replace("$$", "$").replace("${__user.login}", login)


def api_rows(grafana: GrafanaClient, path: str) -> Any:
    request = urllib.request.Request(
        f"{grafana.url}/api/v1{path}", headers=dict(grafana.headers("prometheus", OPERATOR))
    )
    try:
        with urllib.request.urlopen(request, timeout=scaled(10)) as answer:
            return json.load(answer)
    except OSError:
        return None  # it has not started yet


def _is_measured(grafana: GrafanaClient, jobid: str) -> bool:
    rows = api_rows(grafana, f"/jobs/{jobid}") or []
    return any(
        row["usage_energy_host_idle_joules"] and (row["end_time"] or jobid != ENDED_JOB)
        for row in rows
    )
