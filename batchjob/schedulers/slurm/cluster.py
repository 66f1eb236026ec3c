"""Asking Slurm about its cluster: by slurmrestd, by commands with `--json`, or by their text.

A command that knows no `--json` (sdiag and scontrol before 23.02, or a Slurm built without its
JSON plugin) is asked for text from then on; so both ways are tried once, whatever the version.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from batchjob.runtime.background import AbsentError
from batchjob.runtime.subprocesses import (
    CommandFailedError,
    CommandOptions,
    NotJsonError,
    json_object,
    run,
)
from batchjob.schedulers.cluster import (
    ClusterModule,
    ClusterOptions,
    ClusterReaders,
    DetectedCluster,
    printed_value,
)
from batchjob.schedulers.slurm import cluster_json as slurm_json
from batchjob.schedulers.slurm import cluster_text as slurm_text
from batchjob.schedulers.slurm import native_metrics
from batchjob.schedulers.slurm.json_format import SlurmJsonError
from batchjob.schedulers.slurm.slurmrestd import RestError, RestOptions, Slurmrestd


class _Way(NamedTuple):
    """One part: its path in the REST API, and its command with and without JSON."""

    path: str
    json: tuple[str, ...]
    text: tuple[str, ...]


# No job names, comments or paths: users could use them to inject columns.
_COLUMNS = ("JobID", "Partition", "State", "Reason", "NumCPUs", "tres-alloc", "SubmitTime",
            "EligibleTime", "StartTime", "Account", "UserName")  # fmt: skip
_SQUEUE = ("-O", ",".join(f"{column}:|" for column in _COLUMNS))

_WAYS: Mapping[str, _Way] = {
    "nodes": _Way(
        "nodes",
        ("scontrol", "--json", "-a", "show", "nodes"),
        ("scontrol", "-o", "-a", "-d", "show", "nodes"),
    ),
    "jobs": _Way(
        "jobs",
        ("squeue", "--json", "-a", "-t", "all"),
        ("squeue", "-a", "-r", "-t", "all", *_SQUEUE),
    ),
    "controller": _Way("diag", ("sdiag", "--json"), ("sdiag",)),
    "partitions": _Way(
        "partitions",
        ("scontrol", "--json", "-a", "show", "partitions"),
        ("scontrol", "-o", "-a", "show", "partitions"),
    ),
    "fairshare": _Way("shares", (), ("sshare", "-P", "-l")),
    "licenses": _Way(
        "licenses",
        ("scontrol", "--json", "show", "licenses"),
        ("scontrol", "-o", "show", "licenses"),
    ),
    "reservations": _Way(
        "reservations",
        ("scontrol", "--json", "-a", "show", "reservations"),
        ("scontrol", "-o", "-a", "show", "reservations"),
    ),
}
_ABSENT_PAUSE = 3600.0


def readers(options: ClusterOptions) -> ClusterReaders:
    """By slurmrestd where it has an address, else by commands."""
    native = native_metrics.reader(options) if options.slurm_metrics_url else None
    if not options.slurmrestd_url:
        return by_commands(options)._replace(native=native)
    rest = RestOptions(
        url=options.slurmrestd_url,
        user=options.slurmrestd_user,
        token_file=options.slurmrestd_token_file,
        ca_file=options.slurmrestd_ca_file,
        timeout=options.timeout,
    )
    return by_rest(rest)._replace(native=native)


def by_commands(options: CommandOptions) -> ClusterReaders:
    """The ways to ask by scontrol, squeue, sdiag and sshare."""
    return ClusterReaders(**{part: _command(options, part) for part in _WAYS})


def by_rest(options: RestOptions) -> ClusterReaders:
    """The ways to ask slurmrestd; what its version has not is asked for once in an hour."""
    server = Slurmrestd(options)
    return ClusterReaders(**{part: _rest(server, part) for part in _WAYS})


def _command(options: CommandOptions, part: str) -> Callable[[], Any]:
    from_json, from_text = getattr(slurm_json, part), getattr(slurm_text, part)
    way = _WAYS[part]
    # squeue truncates the task list of an array to 64 characters by default (squeue(1)).
    variables = {"SLURM_BITSTR_LEN": "0"}
    knows_json = bool(way.json)

    def read() -> Any:
        nonlocal knows_json
        if knows_json:
            try:
                output = run(options, way.json, variables).stdout
                return from_json(json_object(output))
            except (CommandFailedError, NotJsonError, SlurmJsonError):
                found = from_text(run(options, way.text, variables).stdout)
                knows_json = False  # the text output works, so the failure was not the controller's
                return found
        return from_text(run(options, way.text, variables).stdout)

    return read


def _rest(server: Slurmrestd, part: str) -> Callable[[], Any]:
    from_json, path = getattr(slurm_json, part), _WAYS[part].path

    def read() -> Any:
        try:
            return from_json(server.get("slurm", path))
        except RestError as error:
            if error.status == 404:
                raise AbsentError(str(error), _ABSENT_PAUSE) from error
            raise

    return read


def detect() -> DetectedCluster | None:
    """The cluster that slurmctld answers for."""
    name = printed_value(("scontrol", "show", "config"), "ClusterName")
    return DetectedCluster("Slurm", name, {"sacct": {}, "sacctmgr": {}}) if name else None


CLUSTER = ClusterModule(readers, detect)
