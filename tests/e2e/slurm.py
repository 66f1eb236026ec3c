"""A Slurm cluster for a test: real daemons from Debian's packages, on loopback, in one folder.

    with slurm.cluster(cgroup=1) as cluster:
        job = cluster.submit("alice", "srun hostname", "--ntasks=2", "--nodes=2")
        cluster.wait(job)
        print(cluster.sacct(job))

Several slurmd on one machine need a Slurm built with multiple-slurmd, as Debian's is; their cgroups
are then `slurm_<node>` (v1) and `system.slice/<node>_slurmstepd.scope` (v2). Ports, node names, job
ids and the folder differ between runs, so that concurrent runs do not conflict. Users exist only
inside the cluster: its programs see a separate /etc/passwd in a private mount namespace (`inside`).
Needs root. It takes about 5 s to start, 2 s without accounting.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e import slurm_files
from tests.helpers.processes import daemon, free_ports, succeeds
from tests.helpers.waiting import until

FINAL_STATES = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT")
)  # fmt: skip
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "setpriv")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
V1_HIERARCHIES = ("cpuacct", "cpuset", "devices", "freezer", "memory")
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Cluster:
    """A running cluster; created by `cluster()`."""

    def __init__(
        self, root: Path, cgroup: int, nodes: int, cpus: int, memory_mb: int, users: Sequence[str]
    ):
        self.root = root
        more = {user: uid for uid, user in enumerate(users, max(slurm_files.USERS.values()) + 1)}
        self.users = slurm_files.USERS | more
        self.cgroup = cgroup
        self.host = os.uname().nodename
        self.name = f"e2e{os.getpid()}"
        self.cpus, self.memory_mb = cpus, memory_mb
        self.nodes = [f"{self.name}n{number}" for number in range(1, nodes + 1)]
        self.ports = free_ports(3 + nodes)  # slurmctld, slurmdbd, MariaDB, each slurmd
        self.first_job = 1000 * (os.getpid() % 60000 + 1)
        self.environ = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOME": "/root",
            "SLURM_CONF": f"{root}/etc/slurm.conf",
            "SLURM_TIME_FORMAT": "%s",
        }

    def inside(self, *command: str) -> list[str]:
        """The command line that runs `command` as root in the cluster's mount namespace."""
        return [str(self.root / "inside"), *command]

    def command(self, *command: str, user: str = "") -> str:
        """Run a Slurm command as root or as one of the users; its standard output."""
        environ = dict(self.environ)
        if user:
            environ |= {"HOME": str(self.home(user)), "USER": user, "LOGNAME": user}
            command = (*_as_user(user), *command)
        cwd = self.home(user) if user else Path("/")
        process = subprocess.run(
            self.inside(*command), env=environ, cwd=cwd, capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise AssertionError(f"{' '.join(command)}: {process.stderr or process.stdout}")
        return process.stdout

    def home(self, user: str) -> Path:
        """A user's home directory."""
        return self.root / "home" / user

    def cgroups(self, node: str) -> list[Path]:
        """The node's top cgroups in every hierarchy in which they exist."""
        pattern = f"*/slurm_{node}" if self.cgroup == 1 else f"system.slice/{node}_slurmstepd.scope"
        return list(Path("/sys/fs/cgroup").glob(pattern))

    def sleeping(self, job: str) -> int | None:
        """The process of a running job that sleeps, once there is one."""
        tops = (top for node in self.nodes for top in self.cgroups(node))
        for procs in (path for top in tops for path in top.rglob(f"job_{job}/**/cgroup.procs")):
            for pid in procs.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    return int(pid)
        return None

    def submit(self, user: str, script: str, *options: str) -> str:
        """Submit a shell script; the job's raw id (of an array or het job: the first)."""
        path = self.home(user) / f"job-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        output = self.command("sbatch", "--parsable", *options, str(path), user=user)
        return output.strip().split(";")[0]

    def states(self) -> dict[str, str]:
        """State of every job that slurmctld knows, by raw id."""
        lines = self.command("squeue", "--noheader", "--states=all", "--format=%A %T").splitlines()
        return dict(line.split() for line in lines)

    def raw_ids(self, job: str) -> list[str]:
        """The raw ids of an array's tasks or a het job's components that slurmctld knows."""
        lines = self.command("scontrol", "--oneliner", "show", "job", job).splitlines()
        return [line.split()[0].partition("=")[2] for line in lines]

    def wait(self, *jobs: str, state: str = "", timeout: float = 300.0) -> None:
        """Wait until the jobs are in `state`, or have ended."""
        wanted_states = frozenset((state,)) if state else FINAL_STATES
        until(
            lambda: self._all_in_states(jobs, wanted_states),
            f"jobs {', '.join(jobs)} in {state or 'a final state'}",
            timeout,
            interval=0.2,
        )

    def _all_in_states(self, jobs: Sequence[str], wanted_states: frozenset[str]) -> bool:
        states = self.states()
        return all(states.get(job) in wanted_states for job in jobs)

    def sacct(self, job: str, fields: Sequence[str], timeout: float = 30.0) -> list[dict[str, str]]:
        """Accounting of a job and its steps; waits until slurmdbd has the end of all of them."""
        fields = list(dict.fromkeys((*fields, "JobIDRaw", "End")))
        return until(
            lambda: self._final_accounting(job, fields),
            f"sacct of job {job}",
            timeout,
            interval=0.3,
        )

    def _final_accounting(self, job: str, fields: Sequence[str]) -> list[dict[str, str]] | None:
        # A job's name may hold the default delimiter, which sacct does not escape.
        text = self.command(
            "sacct", "--parsable2", "--noheader", "--delimiter=\x1f", f"--jobs={job}",
            "--format=" + ",".join(fields),
        )  # fmt: skip
        rows = [dict(zip(fields, line.split("\x1f"), strict=True)) for line in text.splitlines()]
        # An array's id selects all its tasks, a het job's all its components.
        rows = [row for row in rows if row["JobIDRaw"].partition(".")[0] == job]
        return rows if rows and all(row["End"] != "Unknown" for row in rows) else None


@contextlib.contextmanager
def cluster(
    *,
    cgroup: int = 1,
    nodes: int = 4,
    cpus: int = 2,
    memory_mb: int = 4000,
    accounting: bool = True,
    gpus: int = 0,
    conf: str = "",
    users: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Start a cluster, and at the end stop its daemons in reverse order and remove its cgroups.

    `gpus`: fake GPUs of each node. `conf`: additional lines of slurm.conf; `{root}` is the folder.
    `users`: more users, of the first account.
    """
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    new_cluster = Cluster(root, cgroup, nodes, cpus, memory_mb, users)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        slurm_files.write_files(new_cluster, accounting, gpus, conf)
        _start_daemons(new_cluster, accounting, stack)
        yield new_cluster


def _start_daemons(cluster: Cluster, accounting: bool, stack: contextlib.ExitStack) -> None:
    def start_daemon(*argv: str) -> None:
        log_file = cluster.root / "log" / f"{Path(argv[0]).name}.out"
        stack.enter_context(daemon(cluster.inside(*argv), log_file, cluster.environ))

    def succeeds_inside(*argv: str) -> bool:
        return succeeds(cluster.inside(*argv), cluster.environ)

    munge = cluster.root / "munge"
    start_daemon(
        *_as_user("munge"), "munged", "--foreground", f"--socket={munge}/socket",
        f"--key-file={munge}/munge.key", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
        f"--seed-file={munge}/seed",
    )  # fmt: skip
    until(
        lambda: succeeds_inside("munge", "--no-input", f"--socket={munge}/socket"),
        "munged",
    )
    if accounting:
        start_daemon(*_prepare_mariadb(cluster))
        until(lambda: _accepts_connections(cluster.ports[2]), "MariaDB")
        start_daemon("slurmdbd", "-D")
        until(lambda: succeeds_inside("sacctmgr", "--noheader", "show", "cluster"), "slurmdbd")
        cluster.command("sacctmgr", "-iQ", "load", f"file={cluster.root}/etc/associations", "clean")
    start_daemon("slurmctld", "-D", "-i")
    until(lambda: succeeds_inside("scontrol", "show", "config"), "slurmctld")
    stack.callback(_remove_cgroups, cluster)
    for node in cluster.nodes:
        start_daemon("slurmd", "-D", "-N", node)
    stack.callback(_cancel_all_jobs, cluster)
    until(lambda: _idle_nodes(cluster) == len(cluster.nodes), "all nodes idle", timeout=300)


def _prepare_mariadb(cluster: Cluster) -> Sequence[str]:
    """Create an empty database; the command line of its server."""
    data = cluster.root / "mysql"
    common = (
        "--no-defaults", "--user=mysql", f"--datadir={data}", "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
    )  # fmt: skip
    cluster.command("mariadb-install-db", *common, "--skip-test-db")
    init_file = cluster.root / "etc/mariadb.sql"
    init_file.write_text(
        "create database if not exists slurm_acct_db;\n"
        "grant all on slurm_acct_db.* to slurm@localhost identified by 'slurm';\n"
        "grant all on slurm_acct_db.* to slurm@'127.0.0.1' identified by 'slurm';\n"
    )
    return (
        "mariadbd", *common, f"--init-file={init_file}", f"--socket={data}/socket",
        f"--pid-file={data}/pid", "--bind-address=127.0.0.1", f"--port={cluster.ports[2]}",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--skip-log-bin",
    )  # fmt: skip


def _accepts_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _idle_nodes(cluster: Cluster) -> int:
    return len(cluster.command("sinfo", "-h", "-N", "--states=idle", "--format=%N").splitlines())


def _as_user(user: str) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")


def _cancel_all_jobs(cluster: Cluster) -> None:
    """Slurmd does not end running steps when it stops, so end them first."""
    running_jobs = [job for job, state in cluster.states().items() if state not in FINAL_STATES]
    if running_jobs:
        cluster.command("scancel", *running_jobs)
        with contextlib.suppress(AssertionError):  # the rest is killed with its cgroup
            cluster.wait(*running_jobs, timeout=15)


def _remove_cgroups(cluster: Cluster) -> None:
    for node in cluster.nodes:
        for top in cluster.cgroups(node):
            for procs in top.rglob("cgroup.procs"):
                for pid in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            until(lambda top=top: _remove_cgroup_tree(top), f"removal of {top}")


def _remove_cgroup_tree(top: Path) -> bool:
    for folder in sorted([*top.rglob("*/"), top], reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not top.exists()


def missing(cgroup: int, accounting: bool = True) -> str:
    """The reason why this machine cannot start a cluster; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    programs = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    missing_programs = [each for each in programs if not shutil.which(each, path=PATH)]
    if missing_programs:
        return f"not installed: {', '.join(missing_programs)}"
    if cgroup == 1:
        mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
        missing_hierarchies = [
            each for each in V1_HIERARCHIES if f"/sys/fs/cgroup/{each}" not in mounts
        ]
        return (
            f"no cgroup v1 hierarchy: {', '.join(missing_hierarchies)}"
            if missing_hierarchies
            else ""
        )
    return ""
