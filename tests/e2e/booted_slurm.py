"""A Slurm in a booted Debian, as Debian's packages bring it: munge, MariaDB, slurmdbd, one node.

    booted_slurm.begin(machine)
    job = booted_slurm.submit(machine, "sleep 60")

What slurm.conf needs for batchjob is taken from docs/schedulers/slurm.md.
"""

from tests.e2e.booted import Machine
from tests.e2e.reader import text
from tests.helpers.waiting import until

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server")
CLUSTER, NODE, USER, ACCOUNT = "alpha", "node001", "alice", "physics"

SLURM_CONF = f"""\
ClusterName={CLUSTER}
SlurmctldHost={NODE}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={NODE}
AccountingStorageEnforce=associations
NodeName={NODE} CPUs=2 RealMemory=4000
PartitionName=cpu Nodes={NODE} Default=YES MaxTime=60 DefaultTime=20 State=UP
"""
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainDevices=yes
"""
SLURMDBD_CONF = f"""\
DbdHost={NODE}
SlurmUser=slurm
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
"""
# By the socket, where MariaDB knows who asks.
DATABASE = """\
create database slurm_acct_db;
create user slurm@localhost identified via unix_socket;
grant all on slurm_acct_db.* to slurm@localhost;
"""


def begin(machine: Machine) -> None:
    """Configure and start it; the machine becomes its node."""
    machine.run("hostname", NODE)
    of_the_page = text("docs/schedulers/slurm.md", "ProctrackType=", {"=gres/gpu": "=cpu"})
    _write(machine, "slurm.conf", SLURM_CONF + of_the_page)
    _write(machine, "cgroup.conf", CGROUP_CONF)
    _write(machine, "slurmdbd.conf", SLURMDBD_CONF)
    machine.run("chown", "slurm:", "/etc/slurm/slurmdbd.conf")
    machine.run("chmod", "600", "/etc/slurm/slurmdbd.conf")
    machine.run("install", "-d", "-o", "slurm", "/var/lib/slurm/slurmctld")
    machine.run("install", "-d", "/var/lib/slurm/slurmd")
    machine.run("useradd", "--create-home", USER)
    until(lambda: machine.succeeds("mariadb", "-e", "select 1"), "MariaDB", 60)
    machine.run("mariadb", "-e", DATABASE)
    machine.run("systemctl", "enable", "--now", "munge", "slurmdbd")
    until(lambda: machine.succeeds("sacctmgr", "--noheader", "show", "cluster"), "slurmdbd", 60)
    for argv in (
        ("add", "cluster", CLUSTER),
        ("add", "account", ACCOUNT),
        ("add", "user", USER, f"account={ACCOUNT}"),
    ):
        machine.run("sacctmgr", "--immediate", *argv)
    machine.run("systemctl", "enable", "--now", "slurmctld", "slurmd")
    until(lambda: "idle" in machine.run("sinfo", "-h", "-o", "%T"), "an idle node", 60)


def submit(machine: Machine, script: str) -> str:
    """A job of the one user; its id."""
    argv = ("sbatch", "--parsable", f"--chdir=/home/{USER}", f"--wrap={script}")
    return machine.run("runuser", "-u", USER, "--", *argv).strip()


def _write(machine: Machine, name: str, content: str) -> None:
    (machine.root / "etc/slurm" / name).write_text(content)
