"""A Slurm of its own for a test: real daemons from Debian's packages, on loopback, in one folder.

    with slurm.cluster(cgroup=1) as cluster:
        job = cluster.submit("alice", "srun hostname", "--ntasks=2", "--nodes=2")
        cluster.wait(job)
        print(cluster.sacct(job))

Several slurmd on one machine need a Slurm built with multiple-slurmd, as Debian's is; their cgroups
are then `slurm_<node>` (v1) and `system.slice/<node>_slurmstepd.scope` (v2). Ports, node names, job
ids and the folder differ from run to run, so that runs do not meet. Users exist only inside the
cluster: its programs see an /etc/passwd of their own in a private mount namespace (`inside`).
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

from tests.e2e.processes import daemon, free_ports, succeeds, until

USERS = {"alice": 20001, "bob": 20002, "carol": 20003, "dave": 20004}
ACCOUNTS = {"physics": ("alice",), "chem": ("bob", "dave"), "astro": ("carol", "alice")}
FINAL_STATES = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT")
)  # fmt: skip
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "setpriv")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
V1_HIERARCHIES = ("cpuacct", "cpuset", "devices", "freezer", "memory")
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
SlurmUser=slurm
SlurmdUser=root
StateSaveLocation={root}/ctld
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/ctld/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmdParameters=config_overrides
FirstJobId={first_job}
MinJobAge=600
KillWait=5
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/cgroup
TaskPlugin={task_plugin}
PrologFlags=contain
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=30
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
PartitionName=cpu Nodes={nodes} Default=YES MaxTime=60 DefaultTime=5 State=UP
"""
ACCOUNTING_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[1]}
AccountingStoragePass={root}/munge/socket
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_script,job_env,job_comment
PriorityType=priority/multifactor
"""
NODE_CONF = (
    "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 "
    "SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb}\n"
)
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={ports[1]}
CommunicationParameters=NoInAddrAny
SlurmUser=slurm
LogFile={root}/log/slurmdbd.log
PidFile={root}/dbd/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[2]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
CGROUP_CONF = {
    1: """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=yes
ConstrainDevices=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
""",
    # IgnoreSystemd: slurmd makes its scope with mkdir instead of asking systemd over D-Bus.
    2: """\
CgroupPlugin=cgroup/v2
CgroupMountpoint=/sys/fs/cgroup
IgnoreSystemd=yes
ConstrainCores=no
ConstrainDevices=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
""",
}
# Run a command where the cluster's users and the machine's name are known.
INSIDE = """\
#!/bin/sh
exec unshare --mount --propagation private -- /bin/sh -c '
for file in passwd group hosts; do mount --bind {root}/etc/$file /etc/$file || exit 125; done
exec "$@"' inside "$@"
"""


class Cluster:
    """A running cluster; made by `cluster()`."""

    def __init__(self, root: Path, cgroup: int, nodes: int, cpus: int, memory_mb: int):
        self.root = root
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
        """The command line that runs `command` as root where the cluster's users exist."""
        return [str(self.root / "inside"), *command]

    def command(self, *command: str, user: str = "") -> str:
        """Run a Slurm command, as root or as one of the users; its standard output."""
        environ = dict(self.environ)
        if user:
            environ |= {"HOME": str(self.home(user)), "USER": user, "LOGNAME": user}
            command = (*_as(user), *command)
        cwd = self.home(user) if user else Path("/")
        done = subprocess.run(
            self.inside(*command), env=environ, cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def home(self, user: str) -> Path:
        """A user's home directory."""
        return self.root / "home" / user

    def cgroups(self, node: str) -> list[Path]:
        """The node's top cgroups, in every hierarchy that is there now."""
        pattern = f"*/slurm_{node}" if self.cgroup == 1 else f"system.slice/{node}_slurmstepd.scope"
        return list(Path("/sys/fs/cgroup").glob(pattern))

    def submit(self, user: str, script: str, *options: str) -> str:
        """Submit a shell script; the job's raw id (of an array or het job: the first)."""
        path = self.home(user) / f"job-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        answer = self.command("sbatch", "--parsable", *options, str(path), user=user)
        return answer.strip().split(";")[0]

    def states(self) -> dict[str, str]:
        """State of every job slurmctld remembers, by raw id."""
        lines = self.command("squeue", "--noheader", "--states=all", "--format=%A %T").splitlines()
        return dict(line.split() for line in lines)

    def raw_ids(self, job: str) -> list[str]:
        """The raw ids of an array's tasks or a het job's components, as far as they are known."""
        lines = self.command("scontrol", "--oneliner", "show", "job", job).splitlines()
        return [line.split()[0].partition("=")[2] for line in lines]

    def wait(self, *jobs: str, state: str = "", timeout: float = 60.0) -> None:
        """Until the jobs are in `state`, or have ended."""
        wanted = frozenset((state,)) if state else FINAL_STATES
        until(
            lambda: self._all_in(jobs, wanted),
            f"jobs {', '.join(jobs)} in {state or 'a final state'}",
            timeout,
            interval=0.2,
        )

    def _all_in(self, jobs: Sequence[str], wanted: frozenset[str]) -> bool:
        states = self.states()
        return all(states.get(job) in wanted for job in jobs)

    def sacct(self, job: str, fields: Sequence[str], timeout: float = 30.0) -> list[dict[str, str]]:
        """Accounting of a job and its steps, once slurmdbd has the end of all of them."""
        fields = list(dict.fromkeys((*fields, "JobIDRaw", "End")))
        return until(
            lambda: self._accounted(job, fields), f"sacct of job {job}", timeout, interval=0.3
        )

    def _accounted(self, job: str, fields: Sequence[str]) -> list[dict[str, str]] | None:
        # A job's name may hold the default delimiter, which sacct does not escape.
        text = self.command(
            "sacct", "--parsable2", "--noheader", "--delimiter=\x1f", f"--jobs={job}",
            "--format=" + ",".join(fields),
        )  # fmt: skip
        rows = [dict(zip(fields, line.split("\x1f"), strict=True)) for line in text.splitlines()]
        # An array's id asks for all its tasks, a het job's for all its components.
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
) -> Iterator[Cluster]:
    """Start a cluster, and at the end stop its daemons in reverse order and remove its cgroups."""
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    made = Cluster(root, cgroup, nodes, cpus, memory_mb)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        _write_files(made, accounting)
        _start(made, accounting, stack)
        yield made


def _write_files(made: Cluster, accounting: bool) -> None:
    root = made.root
    root.chmod(0o755)
    for folder, owner in {
        "etc": "root", "home": "root", "spool": "root", "log": "slurm", "ctld": "slurm",
        "dbd": "slurm", "munge": "munge", "mysql": "mysql" if accounting else "root",
    }.items():  # fmt: skip
        (root / folder).mkdir(mode=0o755)
        shutil.chown(root / folder, owner)
    _write_users(made)
    key = root / "munge/munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    shutil.chown(key, "munge")
    values = {
        **vars(made),
        "nodes": ",".join(made.nodes),
        "task_plugin": "task/cgroup,task/affinity" if made.cgroup == 1 else "task/cgroup",
    }
    conf = SLURM_CONF + (ACCOUNTING_CONF if accounting else "")
    for node, port in zip(made.nodes, made.ports[3:], strict=True):
        conf += NODE_CONF.format(**values, node=node, port=port)
        (root / "spool" / node).mkdir()
    (root / "etc/slurm.conf").write_text(conf.format(**values))
    (root / "etc/cgroup.conf").write_text(CGROUP_CONF[made.cgroup])
    dbd_conf = root / "etc/slurmdbd.conf"
    dbd_conf.write_text(SLURMDBD_CONF.format(**values))
    dbd_conf.chmod(0o600)
    shutil.chown(dbd_conf, "slurm")
    (root / "etc/associations").write_text("\n".join(_associations(made.name)))


def _write_users(made: Cluster) -> None:
    etc = made.root / "etc"
    names = USERS.items()
    passwd = [f"{name}:x:{uid}:{uid}::{made.home(name)}:/bin/bash\n" for name, uid in names]
    group = [f"{name}:x:{uid}:\n" for name, uid in names]
    (etc / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(passwd))
    (etc / "group").write_text(Path("/etc/group").read_text() + "".join(group))
    # Slurm binds to the address of the host's own name.
    (etc / "hosts").write_text(f"127.0.0.1 localhost {made.host}\n")
    for name, uid in names:
        made.home(name).mkdir(mode=0o700)
        os.chown(made.home(name), uid, uid)
    inside = made.root / "inside"
    inside.write_text(INSIDE.format(root=made.root))
    inside.chmod(0o755)


def _associations(name: str) -> Iterator[str]:
    """What `sacctmgr load` reads: one call instead of one `sacctmgr add` per row."""
    yield f"Cluster - '{name}':Fairshare=1:QOS='normal'"
    yield "Parent - 'root'"
    yield "User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1"
    for account in ACCOUNTS:
        yield f"Account - '{account}':Description='{account}':Organization='science':Fairshare=1"
    seen: set[str] = set()
    for account, users in ACCOUNTS.items():
        yield f"Parent - '{account}'"
        for user in users:
            default = "" if user in seen else f"DefaultAccount='{account}':"
            seen.add(user)
            yield f"User - '{user}':{default}Fairshare=1"
    yield ""


def _start(made: Cluster, accounting: bool, stack: contextlib.ExitStack) -> None:
    def run(*argv: str) -> None:
        log = made.root / "log" / f"{Path(argv[0]).name}.out"
        stack.enter_context(daemon(made.inside(*argv), log, made.environ))

    def answers(*argv: str) -> bool:
        return succeeds(made.inside(*argv), made.environ)

    munge = made.root / "munge"
    run(
        *_as("munge"), "munged", "--foreground", f"--socket={munge}/socket",
        f"--key-file={munge}/munge.key", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
        f"--seed-file={munge}/seed",
    )  # fmt: skip
    until(lambda: answers("munge", "--no-input", f"--socket={munge}/socket"), "munged")
    if accounting:
        run(*_mariadb(made))
        until(lambda: _listening(made.ports[2]), "MariaDB")
        run("slurmdbd", "-D")
        until(lambda: answers("sacctmgr", "--noheader", "show", "cluster"), "slurmdbd")
        made.command("sacctmgr", "-iQ", "load", f"file={made.root}/etc/associations", "clean")
    run("slurmctld", "-D", "-i")
    until(lambda: answers("scontrol", "show", "config"), "slurmctld")
    stack.callback(_remove_cgroups, made)
    for node in made.nodes:
        run("slurmd", "-D", "-N", node)
    stack.callback(_cancel_all, made)
    until(lambda: _idle_nodes(made) == len(made.nodes), "all nodes idle", timeout=60)


def _mariadb(made: Cluster) -> Sequence[str]:
    """Make an empty database; the command line that serves it."""
    data = made.root / "mysql"
    common = (
        "--no-defaults", "--user=mysql", f"--datadir={data}", "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
    )  # fmt: skip
    made.command("mariadb-install-db", *common, "--skip-test-db")
    first = made.root / "etc/mariadb.sql"
    first.write_text(
        "create database if not exists slurm_acct_db;\n"
        "grant all on slurm_acct_db.* to slurm@localhost identified by 'slurm';\n"
        "grant all on slurm_acct_db.* to slurm@'127.0.0.1' identified by 'slurm';\n"
    )
    return (
        "mariadbd", *common, f"--init-file={first}", f"--socket={data}/socket",
        f"--pid-file={data}/pid", "--bind-address=127.0.0.1", f"--port={made.ports[2]}",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--skip-log-bin",
    )  # fmt: skip


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _idle_nodes(made: Cluster) -> int:
    return len(made.command("sinfo", "-h", "-N", "--states=idle", "--format=%N").splitlines())


def _as(user: str) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")


def _cancel_all(made: Cluster) -> None:
    """Slurmd leaves running steps alone when it stops, so end them first."""
    running = [job for job, state in made.states().items() if state not in FINAL_STATES]
    if running:
        made.command("scancel", *running)
        with contextlib.suppress(AssertionError):  # what stays is killed with its cgroup
            made.wait(*running, timeout=15)


def _remove_cgroups(made: Cluster) -> None:
    for node in made.nodes:
        for top in made.cgroups(node):
            for procs in top.rglob("cgroup.procs"):
                for pid in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            until(lambda top=top: _removed(top), f"removal of {top}")


def _removed(top: Path) -> bool:
    for folder in sorted([*top.rglob("*/"), top], reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not top.exists()


def missing(cgroup: int, accounting: bool = True) -> str:
    """Why no cluster can be started on this machine, or nothing."""
    if os.geteuid() != 0:
        return "needs root"
    programs = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    absent = [each for each in programs if not shutil.which(each, path=PATH)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if cgroup == 1:
        mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
        absent = [each for each in V1_HIERARCHIES if f"/sys/fs/cgroup/{each}" not in mounts]
        return f"no cgroup v1 hierarchy: {', '.join(absent)}" if absent else ""
    return ""
