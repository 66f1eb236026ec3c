"""Faults of the scheduler, the poller, its time series database and the server."""

import contextlib
import json
import lzma
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from tests.batchjob_stats_db import tsdb
from tests.e2e import exporter
from tests.grafana.stack import running_program
from tests.helpers.processes import call, free_ports
from tests.helpers.waiting import scaled, until
from tests.prometheus import chain
from tests.simulated import commands

FIXTURES = Path(__file__).parents[1] / "fixtures"
CLUSTER = "alpha"
JOB_SECONDS = 3600


def scheduler_does_not_answer(folder, recording):
    with _running_cluster_exporter(folder) as running:
        target = chain.scheduler(running.address)
        until(
            lambda: _series_values(target, "batchjob_cluster_age_seconds", part="nodes"),
            "nodes",
            60,
        )
        recording.healthy(target)
        for name in ("scontrol", "squeue", "sdiag", "sshare"):
            (folder / "bin" / name).write_text("#!/bin/sh\necho Unable to contact >&2\nexit 1\n")
        until(lambda: not _series_values(target, "batchjob_cluster_age_seconds"), "no answers", 120)
        wait_for_rise = chain.counter_rise(target, "batchjob_cluster_errors_total", part="nodes")
        recording.faulty(target, between=wait_for_rise)


def node_is_not_scraped(folder, recording):
    top = ("--collector.disable-defaults", "--collector.node")
    with _running_cluster_exporter(folder) as running, exporter.running(*top) as node:
        target = chain.scheduler(running.address)
        found = until(lambda: _series_values(target, "batchjob_cluster_node_info"), "nodes", 60)
        names = sorted(
            key["node"] for key, _ in found if key["state"] in ("idle", "mixed", "allocated")
        )
        assert len(names) > 1
        nodes = [chain.node(node.address, name) for name in names]
        recording.healthy(target, *nodes)
        recording.faulty(target, *nodes[1:])


def poller_is_stopped(folder, recording):
    with _running_poller(folder, _create_jsonl_source(folder)) as target:
        recording.healthy(target)
    recording.faulty(target)


def accounting_fails(folder, recording):
    with _running_poller(folder, _write_accounting_commands(folder)) as target:
        until(lambda: _series_values(target, LAST_SUCCESS), "a poll", 60)
        wait_for_poll = chain.counter_rise(target, "batchjob_stats_db_polls_total", result="ok")
        recording.healthy(target, between=wait_for_poll)
        _write_accounting_commands(folder, works=False)
        wait_for_failed_poll = chain.counter_rise(
            target, "batchjob_stats_db_polls_total", result="error"
        )
        wait_for_failed_poll()
        recording.faulty(target, between=wait_for_failed_poll)


def accounting_never_answered(folder, recording):
    source = _write_accounting_commands(folder)
    with _running_poller(folder, source) as target:
        until(lambda: _series_values(target, LAST_SUCCESS), "a poll", 60)
        recording.healthy(target)
    _write_accounting_commands(folder, works=False)
    with _running_poller(folder, source) as target:
        wait_for_failed_poll = chain.counter_rise(
            target, "batchjob_stats_db_polls_total", result="error"
        )
        recording.faulty(target, between=wait_for_failed_poll)


LAST_SUCCESS = "batchjob_stats_db_last_success_timestamp_seconds"


def backups_are_gone(folder, recording):
    with _poller_with_backup(folder) as (target, backup):
        recording.healthy(target)
        backup.unlink()
        _until_backup_is(target, lambda at: at == 0)
        recording.faulty(target)


def backups_are_not_made(folder, recording):
    recording.slack_seconds = 40 * 3600
    with _poller_with_backup(folder) as (target, _):
        first = _backup_time(target)

        def back_up():
            _create_backup(folder)
            _until_backup_is(target, lambda at: at > first)

        recording.healthy(target, between=back_up)
        recording.faulty(target)


def samples_are_missing(folder, recording):
    """Jobs with every sample, and then jobs without any. The kernel has no memory.peak."""
    jobs = _JobFile(folder)
    end = jobs.begin + JOB_SECONDS
    lines = [each for number in range(60) for each in _sample_lines(str(number), jobs.begin, end)]
    with tsdb.prometheus(lines) as url, _running_poller(folder, jobs.source, tsdb=url) as target:
        wait_for_measurement = chain.counter_rise(target, "batchjob_stats_db_measured_jobs_total")

        def end_jobs():
            jobs.write(10)
            wait_for_measurement()

        recording.healthy(target, between=end_jobs)
        jobs.number = 1000
        recording.faulty(target, between=end_jobs)


def jobs_fail_on_one_node(folder, recording):
    jobs = _JobFile(folder)
    with _running_poller(folder, jobs.source) as target:
        wait_for_jobs = chain.counter_rise(
            target, "batchjob_stats_db_ended_jobs_total", node="n002"
        )

        def end_jobs(state="COMPLETED"):
            jobs.write(3, nodes=["n001"], state=state)
            jobs.write(6, nodes=["n002"])
            wait_for_jobs()

        recording.healthy(target, between=end_jobs)
        recording.faulty(target, between=lambda: end_jobs("FAILED"))


def tracked_work_fails(folder, recording):
    jobs = _JobFile(folder)
    with _running_poller(folder, jobs.source) as target:
        wait_for_jobs = chain.counter_rise(
            target, "batchjob_stats_db_tracked_work_total", tool="blast"
        )

        def end_jobs(state="COMPLETED"):
            jobs.write(3, tool="blast", state=state)
            wait_for_jobs()

        recording.healthy(target, between=end_jobs)
        recording.faulty(target, between=lambda: end_jobs("FAILED"))


def server_is_stopped(folder, recording):
    with _running_server(folder) as target:
        recording.healthy(target)
    recording.faulty(target)


def database_of_the_server_is_gone(folder, recording):
    with _running_server(folder) as target:
        assert _request_jobs(target) == 200
        recording.healthy(target, between=lambda: _request_jobs(target))
        (folder / "jobs.db").rename(folder / "elsewhere.db")
        until(lambda: _request_jobs(target) >= 500, "an error", 60)
        recording.faulty(target, between=lambda: _request_jobs(target))


class _JobFile:
    """A file that the poller follows, with jobs of an hour that ended some minutes ago."""

    def __init__(self, folder):
        self.source = _create_jsonl_source(folder)
        self.begin = int(time.time()) - JOB_SECONDS - 600
        self.number = 0
        self._path = folder / "jobs.jsonl"

    def write(self, count, nodes=("n001",), state="COMPLETED", **fields):
        with self._path.open("a") as file:
            for _ in range(count):
                record = {
                    "jobid": str(self.number), "user": "alice", "uid": 1001, "state": state,
                    "submit_time": self.begin - 60, "start_time": self.begin,
                    "end_time": self.begin + JOB_SECONDS, "allocated_cpus": 2,
                    "allocated_nodes": 1, "nodes": list(nodes), **fields,
                }  # fmt: skip
                file.write(json.dumps(record) + "\n")
                self.number += 1


def _sample_lines(jobid, begin, end):
    for at in range(begin, end + 30, 30):
        labels = {"jobid": jobid, "cluster": CLUSTER, "instance": "n001"}
        yield tsdb.line("cpu_seconds_total", at - begin, at, mode="user", **labels)
        yield tsdb.line("memory_current_bytes", 1 << 30, at, **labels)


def _create_jsonl_source(folder):
    (folder / "jobs.jsonl").touch()
    return {"jsonl": {"path": str(folder / "jobs.jsonl")}}


def _write_accounting_commands(folder, works=True):
    """Write commands of Slurm that find no jobs, or fail."""
    recording = FIXTURES / "accounting/slurm-22.05.8.sacct.xz"
    header = lzma.decompress(recording.read_bytes()).partition(b"\n")[0]
    fields = header.decode().replace("\x02", " ")
    answer = f'case "$*" in --helpformat) echo "{fields}";; esac' if works else "exit 1"
    programs = {}
    for name in ("sacct", "squeue", "sacctmgr"):
        new_program = folder / f"{name}.new"
        new_program.write_text(f"#!/bin/sh\n{answer}\n")
        new_program.chmod(0o755)
        programs[name] = str(new_program.replace(folder / name))
    return {"sacct": programs}


@contextlib.contextmanager
def _running_poller(folder, source, **options):
    """Run the poller; gives its target once it answers."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = folder / "stats_db.yml"
    tsdb_config = {"tsdb": {"url": options["tsdb"], "linger": "5s"}} if "tsdb" in options else {}
    document = {
        "db": {"url": f"sqlite:///{folder}/jobs.db"},
        "web": {"listen-address": address},
        "poll": {"interval": "1s", "rollup-interval": "1s", "longest-pause": "1s"},
        "backup": {"directory": str(folder / "backups")},
        "clusters": [{"name": CLUSTER, "sources": source}],
    }
    config.write_text(yaml.safe_dump(document | tsdb_config))
    target = chain.poller(address)
    with running_program("batchjob_stats_db", config, migrate=True):
        until(
            lambda: _series_values(target, "batchjob_stats_db_poll_interval_seconds"), "poller", 60
        )
        yield target


@contextlib.contextmanager
def _poller_with_backup(folder):
    """Run the poller after a backup; gives its target and the file of the backup."""
    with _running_poller(folder, _create_jsonl_source(folder)) as target:
        _create_backup(folder)
        (backup,) = (folder / "backups").glob("*.db")
        _until_backup_is(target, lambda at: at > 0)
        yield target, backup


def _until_backup_is(target, is_seen):
    """Wait for the poller, which looks at the directory of backups every few seconds."""

    until(lambda: is_seen(_backup_time(target)), "a look at the backups", 60)


def _backup_time(target):
    ((_, at),) = _series_values(target, "batchjob_stats_db_backup_timestamp_seconds")
    return at


def _create_backup(folder):
    time.sleep(1)  # backups are named by the second
    config = f"--config.file={folder}/stats_db.yml"
    call(sys.executable, "-m", "batchjob_stats_db.main", config, "backup")


@contextlib.contextmanager
def _running_server(folder):
    """Run the server over the tables of the poller; gives its target."""
    with _running_poller(folder, _create_jsonl_source(folder)):
        pass
    address = f"127.0.0.1:{free_ports(1)[0]}"
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    config = folder / "server.yml"
    document = {
        "db": {"url": f"sqlite:///{folder}/jobs.db"},
        "web": {"listen-address": address},
        "auth": {"trusted-peer": ["127.0.0.1"], "secret-file": str(secret), "admin": ["root"]},
    }
    config.write_text(yaml.safe_dump(document))
    target = chain.server(address)
    with running_program("batchjob_stats_server", config):
        until(lambda: len(target.scrape()) > 1, "server", 60)
        yield target


SECRET = "correct horse battery staple"


def _request_jobs(target):
    """Request the list of jobs, and return the status."""
    headers = {"X-Batchjob-Secret": SECRET, "X-Grafana-User": "root"}
    request = urllib.request.Request(f"http://{target.address}/api/v1/jobs", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@contextlib.contextmanager
def _running_cluster_exporter(folder):
    """Run an exporter with the collector `cluster` over recorded answers of Slurm."""
    programs = folder / "bin"
    programs.mkdir()
    recorded = FIXTURES / "cluster/slurm-24.11"

    def read_answer(name):
        return lzma.decompress((recorded / f"{name}.xz").read_bytes())

    nodes = read_answer("scontrol_show_nodes.json")
    commands.install(programs, "scontrol", {"--json -a show nodes": nodes})
    commands.install(programs, "squeue", {"--json": read_answer("squeue.json")})
    commands.install(programs, "sdiag", {"--json": read_answer("sdiag.json")})
    commands.install(programs, "sshare", {"-P": (recorded / "sshare.txt").read_bytes()})
    flags = (
        "--collector.disable-defaults", "--collector.cluster",
        "--collector.cluster.scheduler=slurm", "--collector.cluster.interval=1s",
        "--collector.cluster.timeout=5s", "--collector.cluster.without=licenses",
    )  # fmt: skip
    path = f"PATH={programs}:{os.environ['PATH']}"
    with exporter.running(*flags, inside=("env", path)) as running:
        yield running


def _series_values(target, name, **labels):
    wanted = {("__name__", name), *labels.items()}
    return [(dict(key), value) for key, value in target.scrape().items() if wanted <= set(key)]


FAULTS = {
    "BatchjobClusterStateOld": scheduler_does_not_answer,
    "BatchjobNodeNeverReported": node_is_not_scraped,
    "BatchjobPollerDown": poller_is_stopped,
    "BatchjobPollerBehind": accounting_fails,
    "BatchjobPollerNeverRead": accounting_never_answered,
    "BatchjobBackupMissing": backups_are_gone,
    "BatchjobBackupOld": backups_are_not_made,
    "BatchjobCoverageLow": samples_are_missing,
    "BatchjobUsageHasCaveats": samples_are_missing,
    "BatchjobNodeFailsJobs": jobs_fail_on_one_node,
    "BatchjobTrackedWorkFails": tracked_work_fails,
    "BatchjobServerDown": server_is_stopped,
    "BatchjobServerErrors": database_of_the_server_is_gone,
}
