"""A real Slurm with simulated GPUs, whose users are told by mail of their jobs.

It is watched twice, as two clusters: by an exporter with the rights of its unit, and by one beside
the helper.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e import exporter, idle_jobs, prometheus, slurm, watched_node
from tests.e2e.kernel_jobs import skip_without_rights
from tests.e2e.watched_node import ALONE, HELPED, WatchedNode
from tests.fake_nvml.library import FakeNvml, RunningGpus, compile_into, programs_environment

GPUS = 4
REPOSITORY = Path(__file__).parents[2]


class Site(NamedTuple):
    """The running programs."""

    slurm: slurm.Cluster
    gpus: RunningGpus
    exporters: dict[str, exporter.Target]  # by cluster
    node: WatchedNode


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Start everything."""
    skip_without_rights()
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    with contextlib.ExitStack() as made:
        library = folder / "library"
        library.mkdir()
        compile_into(library)
        fake = FakeNvml(folder / "nvml")
        fake.add_gpus(GPUS)
        gpus = made.enter_context(RunningGpus(fake, GPUS))
        settings = programs_environment(folder, library / "libnvidia-ml.so.1")
        environ = [f"{name}={value}" for name, value in settings.items()]
        conf = "AccountingStorageTRES=gres/gpu\nMailProg={root}/mail\n"
        users = idle_jobs.MORE_USERS
        cluster = made.enter_context(
            slurm.cluster(cgroup=1, nodes=1, cpus=8, gpus=GPUS, conf=conf, users=users)
        )
        inside = cluster.inside("env", *environ)
        flags = ("--collector.jobs.linger=10s", "--collector.gpu.interval=1s")
        helper = made.enter_context(exporter.helper_as_the_unit(folder))
        exporters = {
            name: made.enter_context(exporter.as_the_unit(*flags, *more, inside=inside))
            for name, more in ((ALONE, ()), (HELPED, (f"--path.helper={helper}",)))
        }
        addresses = {name: each.address for name, each in exporters.items()}
        node = made.enter_context(
            watched_node.watching(
                folder, cluster.nodes[0], addresses, {"sacct": {}}, cluster.inside(),
                cluster.environ,
            )
        )  # fmt: skip
        _write_mail_program(cluster, node)
        yield Site(cluster, gpus, exporters, node)


def _write_mail_program(cluster, node):
    """The script of docs/schedulers/slurm.md, with a command that the user of slurmctld can run."""
    for name in ("batchjob", "batchjob_cli"):
        shutil.copytree(REPOSITORY / name, cluster.root / "lib" / name)
    own_token = cluster.root / "mail.token"
    shutil.copyfile(node.token, own_token)
    own_token.chmod(0o600)
    shutil.chown(own_token, "slurm")
    program = cluster.root / "mail"
    program.write_text(
        f"#!/bin/sh\ncd {cluster.root}/lib\nexec /usr/bin/python3 -m batchjob_cli mail "
        f"--server {node.url} --token-file {own_token} --cluster {ALONE} --smtp "
        f'{node.relay.address} --from slurm@example.org "$@"\n'
    )
    program.chmod(0o755)
