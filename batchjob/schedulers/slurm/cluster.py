"""Queries the state of a Slurm cluster: by slurmrestd, by commands with `--json`, or as text.

A command that does not support `--json` (sdiag and scontrol before 23.02, or a Slurm built without
its JSON plugin) is run without it from then on. So both are tried once, whatever the version.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from batchjob.runtime import subprocesses
from batchjob.runtime.background import AbsentError
from batchjob.schedulers import cluster
from batchjob.schedulers.slurm import cluster_json as slurm_json
from batchjob.schedulers.slurm import cluster_text as slurm_text
from batchjob.schedulers.slurm.json_format import SlurmJsonError
from batchjob.schedulers.slurm.slurmctld_metrics import native_reader
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd

# No job names, comments or paths: users could use them to inject columns.
_SQUEUE_COLUMNS = ("JobID", "Partition", "State", "Reason", "NumCPUs", "NumNodes", "NumTasks",
    "tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task",
    "EligibleTime", "StartTime", "Account", "UserName")  # fmt: skip
_SQUEUE_FORMAT = ("-O", ",".join(f"{column}:|" for column in _SQUEUE_COLUMNS))

# The path of each part in the REST API, and its command with and without JSON.
_QUERIES: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "nodes": (
        "nodes",
        ("scontrol", "--json", "-a", "show", "nodes"),
        ("scontrol", "-o", "-a", "-d", "show", "nodes"),
    ),
    "jobs": (
        "jobs",
        ("squeue", "--json", "-a", "-t", "all"),
        ("squeue", "-a", "-r", "-t", "all", *_SQUEUE_FORMAT),
    ),
    "controller": ("diag", ("sdiag", "--json"), ("sdiag",)),
    "fairshare": ("shares", (), ("sshare", "-P", "-l")),
    "licenses": (
        "licenses",
        ("scontrol", "--json", "show", "licenses"),
        ("scontrol", "-o", "show", "licenses"),
    ),
}
_RETRY_ABSENT_SECONDS = 3600.0


def readers(options: cluster.ClusterOptions) -> cluster.ClusterReaders:
    """The queries by slurmrestd if its URL is set, else by commands; and of slurmctld's metrics."""
    rest = RestOptions(
        url=options.slurmrestd_url,
        user=options.slurmrestd_user,
        token_file=options.slurmrestd_token_file,
        ca_file=options.slurmrestd_ca_file,
        timeout=options.timeout,
    )
    if rest.url:
        server = Slurmrestd(rest)
        found = cluster.ClusterReaders(**{part: _rest_reader(server, part) for part in _QUERIES})
    else:
        found = command_readers(options)
    if not options.slurm_metrics_url:
        return found
    slurmctld = replace(rest, url=options.slurm_metrics_url)
    return found._replace(slurmctld=native_reader(slurmctld, options.users))


def command_readers(options: subprocesses.CommandOptions) -> cluster.ClusterReaders:
    return cluster.ClusterReaders(**{part: _command_reader(options, part) for part in _QUERIES})


def _command_reader(options: subprocesses.CommandOptions, part: str) -> Callable[[], Any]:
    from_json, from_text = getattr(slurm_json, part), getattr(slurm_text, part)
    _, json_command, text_command = _QUERIES[part]
    # squeue truncates the task list of an array to 64 characters by default (squeue(1)).
    variables = {"SLURM_BITSTR_LEN": "0"}
    supports_json = bool(json_command)

    def read() -> Any:
        nonlocal supports_json
        if supports_json:
            with contextlib.suppress(
                subprocesses.CommandFailedError, subprocesses.NotJsonError, SlurmJsonError
            ):
                output = subprocesses.run(options, json_command, variables)
                return from_json(subprocesses.parse_json_object(output))
        found = from_text(subprocesses.run(options, text_command, variables))
        # The text output works, so a failure was not the controller's.
        supports_json = False
        return found

    return read


def _rest_reader(server: Slurmrestd, part: str) -> Callable[[], Any]:
    """The query of a part by slurmrestd; a path that its version lacks is tried once an hour."""
    from_json, path = getattr(slurm_json, part), _QUERIES[part][0]

    def read() -> Any:
        try:
            return from_json(server.get("slurm", path))
        except RestError as error:
            if error.status == 404:
                raise AbsentError(str(error), _RETRY_ABSENT_SECONDS) from error
            raise

    return read


def detect() -> cluster.DetectedCluster | None:
    name = cluster.read_command_value(("scontrol", "show", "config"), "ClusterName")
    sources = {"sacct": {"queue-interval": "0s"}, "sacctmgr": {}}  # who submits a job looks for it
    return cluster.DetectedCluster("Slurm", name, sources) if name else None


CLUSTER = cluster.ClusterModule(readers, detect)
