"""A real Slurm with simulated GPUs, whose users are told by mail of their jobs.

It is watched twice, as two clusters: by an exporter with the rights of its unit, and by one beside
the helper.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole, create
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.kernel_jobs import skip_without_rights
from tests.fake_nvml.library import FakeNvml, RunningGpus, compile_into, programs_environment
from tests.grafana import stack
from tests.helpers.mail_relay import Relay
from tests.helpers.processes import end, free_ports
from tests.helpers.waiting import scaled

ALONE, HELPED = CLUSTERS = (stack.CLUSTER, "helped")
GPUS = 4
REPOSITORY = Path(__file__).parents[2]


class Site(NamedTuple):
    """The running programs."""

    slurm: slurm.Cluster
    gpus: RunningGpus
    relay: Relay
    exporters: dict[str, exporter.Target]  # by cluster
    poller: str
    url: str  # of the server

    def get(self, path: str, user: str = stack.OPERATOR, **parameters: Any) -> str:
        """An answer of the server to a user."""
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": stack.SECRET}
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
            return str(answer.read().decode())

    def sleeping(self, job: str) -> int | None:
        """The process of a job that sleeps, once there is one."""
        top = Path(f"/sys/fs/cgroup/freezer/slurm_{self.slurm.nodes[0]}")
        for procs in top.glob(f"uid_*/job_{job}/**/cgroup.procs"):
            for pid in procs.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    return int(pid)
        return None

    def rows(self, path: str, **parameters: Any) -> Any:
        """An answer of the API to an operator."""
        return json.loads(self.get(f"/api/v1{path}", **parameters))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Start everything."""
    skip_without_rights()
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    with contextlib.ExitStack() as made:
        relay = Relay()
        made.callback(relay.stop)
        library = folder / "library"
        library.mkdir()
        compile_into(library)
        fake = FakeNvml(folder / "nvml")
        fake.add_gpus(GPUS)
        gpus = made.enter_context(RunningGpus(fake, GPUS))
        settings = programs_environment(folder, library / "libnvidia-ml.so.1")
        environ = [f"{name}={value}" for name, value in settings.items()]
        conf = "AccountingStorageTRES=gres/gpu\nMailProg={root}/mail\n"
        cluster = made.enter_context(
            slurm.cluster(cgroup=1, nodes=1, cpus=8, gpus=GPUS, conf=conf, users=["erin"])
        )
        inside = cluster.inside("env", *environ)
        flags = ("--collector.jobs.linger=10s", "--collector.gpu.interval=1s")
        helper = made.enter_context(_helper(folder))
        exporters = {
            name: made.enter_context(exporter.as_the_unit(*flags, *more, inside=inside))
            for name, more in ((ALONE, ()), (HELPED, (f"--path.helper={helper}",)))
        }
        poller, server = (f"127.0.0.1:{port}" for port in free_ports(2))
        scraping = _scraping(folder, cluster, exporters, poller, server)
        tsdb = made.enter_context(prometheus.serving(scraping))
        config = stack.write_configuration(folder, tsdb.url, {"sacct": {}}, poller, server)
        token = _token(folder)
        _configure(config, relay.address, f"http://{server}", token)
        _write_mail_program(cluster, relay.address, f"http://{server}", token)
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        path = os.pathsep.join((cluster.environ["PATH"], os.environ["PATH"]))
        made.enter_context(
            stack.running_program(
                "batchjob_stats_db", config / "stats_db.yml", inside=cluster.inside(),
                environ={**cluster.environ, "PATH": path},
            )
        )  # fmt: skip
        yield Site(cluster, gpus, relay, exporters, poller, f"http://{server}")


@contextlib.contextmanager
def _helper(folder: Path) -> Iterator[str]:
    """The helper as its unit runs, which answers the exporter's user only; its socket."""
    path = folder / "helper"
    owned = folder / "owned"  # as the unit's StateDirectory, which says whom to answer
    owned.mkdir()
    os.chown(owned, 65534, 65534)
    unit = (exporter.REPOSITORY / "deploy/systemd/batchjob_helper.service").read_text()
    (rights,) = re.findall("^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    bounds = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in rights.split())
    argv = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{bounds}", sys.executable, "-m",
            "batchjob_exporter.helper", "--listen", str(path),
            "--exporter-directory", str(owned)]  # fmt: skip
    process = subprocess.Popen(argv)
    try:
        yield str(path)
    finally:
        end(process)


def _scraping(folder, cluster, exporters, poller, server):
    config = stack.prometheus_configuration(folder, {}, poller, server)
    (jobs,) = (each for each in config["scrape_configs"] if each["job_name"] == "batchjob_exporter")
    for shipped in ("file_sd_configs", "relabel_configs"):
        jobs.pop(shipped)
    jobs["static_configs"] = [
        {"targets": [each.address], "labels": {"cluster": name, "instance": cluster.nodes[0]}}
        for name, each in exporters.items()
    ]
    return config


def _token(folder):
    """A file with the token of a viewer, in a new database."""
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    with engine.begin() as db:
        text = create(db, "messages", TokenRole.VIEWER, "messages", 0)
    engine.dispose()
    file = folder / "messages.token"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def _write_mail_program(cluster, relay, server, token):
    """The script of docs/schedulers/slurm.md, with a command that the user of slurmctld can run."""
    for name in ("batchjob", "batchjob_cli"):
        shutil.copytree(REPOSITORY / name, cluster.root / "lib" / name)
    own_token = cluster.root / "mail.token"
    shutil.copyfile(token, own_token)
    own_token.chmod(0o600)
    shutil.chown(own_token, "slurm")
    program = cluster.root / "mail"
    program.write_text(
        f"#!/bin/sh\ncd {cluster.root}/lib\nexec /usr/bin/python3 -m batchjob_cli mail "
        f"--server {server} --token-file {own_token} --cluster {ALONE} --smtp {relay} "
        '--from slurm@example.org "$@"\n'
    )
    program.chmod(0o755)


def _configure(config, relay, server, token):
    file = config / "stats_db.yml"
    settings = yaml.safe_load(file.read_text())
    (of_one,) = settings["clusters"]
    settings["clusters"] = [{**of_one, "name": name} for name in CLUSTERS]
    settings["messages"] = {
        "server": server, "token-file": token, "smtp": relay, "smtp-tls": "none",
        "sender": "batchjob@example.org", "address": "{user}@example.org",
        "default": ["end", "idle=1m"], "gather": "1s",
    }  # fmt: skip
    settings["tsdb"]["live"] = "5s"
    file.write_text(yaml.safe_dump(settings))
