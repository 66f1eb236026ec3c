"""A job of a recorded machine, whose counters stand still: exporters, pollers and servers of it.

Job 1 of `slurm-22.05-v2-r1-a`: its cgroup's cpu.stat, and the uid of its processes.
"""

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collectors.host import Host
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until

TREE, JOB, OWNER, CPU_SECONDS = "slurm-22.05-v2-r1-a", "1", "2001", 120.531694
NODE = "node01"
COUNTER = f'batchjob_job_cpu_seconds_total{{jobid="{JOB}",mode="user"}}'


def exporter_flags(host: Host) -> tuple[str, ...]:
    """For an exporter that reads the recorded machine."""
    return (
        "--collector.disable-defaults", "--collector.jobs", f"--path.procfs={host.procfs}",
        f"--path.sysfs={host.sysfs}", f"--path.cgroupfs={host.cgroupfs}",
    )  # fmt: skip


def record(began: int) -> dict[str, Any]:
    """What accounting tells of the job, which ends now."""
    return {
        "jobid": JOB, "user": OWNER, "uid": int(OWNER), "state": "COMPLETED", "allocated_cpus": 8,
        "submit_time": began, "start_time": began, "end_time": int(time.time()),
        "nodes": [{"node": NODE, "cpus": 8}],
    }  # fmt: skip


class Api(NamedTuple):
    """A server, asked with a token."""

    port: int
    token: str

    def get(self, path: str) -> Any:
        """The answer's JSON."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/{path}",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
            return json.load(answer)

    def answers(self) -> bool:
        """Whether it takes the token."""
        with contextlib.suppress(OSError):
            return bool(self.get("me"))
        return False


@contextlib.contextmanager
def serving(
    argv: Sequence[str], token: str, log: Path, environment: Mapping[str, str]
) -> Iterator[Api]:
    """Run a server on a free port of loopback."""
    made = Api(free_ports(1)[0], token)
    with daemon([*argv, f"--web.listen-address=127.0.0.1:{made.port}"], log, environment):
        until(made.answers, f"the server answers: {log}", 120, 0.5)
        yield made


def cpu_seconds_in_api(api: Api, cluster: str) -> float:
    """The job's user CPU seconds in the API, whose curves and series must be there too."""
    (job,) = api.get(f"jobs/{JOB}?cluster={cluster}")
    curves = api.get(f"jobs/{JOB}/metrics?cluster={cluster}&metric=memory")
    assert NODE in json.dumps(curves), curves
    query = f"batchjob_job_processes%7Bcluster=%22{cluster}%22,jobid=%22{JOB}%22%7D"
    assert api.get(f"prometheus/api/v1/query?query={query}")["data"]["result"], cluster
    return float(job["usage_user_cpu_seconds"])
