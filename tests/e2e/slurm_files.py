"""Configuration files, users and accounts of a test's Slurm cluster."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.e2e.slurm import Cluster

USERS = {"alice": 20001, "bob": 20002, "carol": 20003, "dave": 20004}
ACCOUNTS = {"physics": ("alice",), "chem": ("bob", "dave"), "astro": ("carol", "alice")}

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
    # IgnoreSystemd: slurmd creates its scope with mkdir instead of through systemd and D-Bus.
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
# Run a command in a mount namespace with the cluster's users and host name.
INSIDE = """\
#!/bin/sh
exec unshare --mount --propagation private -- /bin/sh -c '
for file in passwd group hosts; do mount --bind {root}/etc/$file /etc/$file || exit 125; done
exec "$@"' inside "$@"
"""


# Of NVIDIA's GPUs, Documentation/admin-guide/devices.txt; no driver need be behind the fake ones.
GPU_MAJOR = 195


def write_files(cluster: "Cluster", accounting: bool, gpus: int = 0, extra_conf: str = "") -> None:
    """Create the folders and files of a cluster below `cluster.root`."""
    root = cluster.root
    root.chmod(0o755)
    for folder, owner in {
        "etc": "root", "home": "root", "spool": "root", "log": "slurm", "ctld": "slurm",
        "dbd": "slurm", "munge": "munge", "mysql": "mysql" if accounting else "root",
    }.items():  # fmt: skip
        (root / folder).mkdir(mode=0o755)
        shutil.chown(root / folder, owner)
    _write_users(cluster)
    munge_key = root / "munge/munge.key"
    munge_key.write_bytes(os.urandom(128))
    munge_key.chmod(0o400)
    shutil.chown(munge_key, "munge")
    values = {
        **vars(cluster),
        "nodes": ",".join(cluster.nodes),
        "task_plugin": "task/cgroup,task/affinity" if cluster.cgroup == 1 else "task/cgroup",
    }
    slurm_conf = SLURM_CONF + (ACCOUNTING_CONF if accounting else "") + extra_conf
    if gpus:
        slurm_conf += "GresTypes=gpu\n"
        for number in range(gpus):
            device = os.makedev(GPU_MAJOR, number)
            os.mknod(root / f"etc/gpu{number}", 0o666 | stat.S_IFCHR, device)
        gres_line = f"Name=gpu File={root}/etc/gpu[0-{gpus - 1}]\n"
        (root / "etc/gres.conf").write_text(gres_line)
    gres = f" Gres=gpu:{gpus}\n" if gpus else "\n"
    for node, port in zip(cluster.nodes, cluster.ports[3:], strict=True):
        slurm_conf += NODE_CONF.rstrip("\n").format(**values, node=node, port=port) + gres
        (root / "spool" / node).mkdir()
    (root / "etc/slurm.conf").write_text(slurm_conf.format(**values))
    cgroup_conf = CGROUP_CONF[cluster.cgroup]
    if gpus:
        cgroup_conf = cgroup_conf.replace("ConstrainDevices=no", "ConstrainDevices=yes")
    (root / "etc/cgroup.conf").write_text(cgroup_conf)
    dbd_conf = root / "etc/slurmdbd.conf"
    dbd_conf.write_text(SLURMDBD_CONF.format(**values))
    dbd_conf.chmod(0o600)
    shutil.chown(dbd_conf, "slurm")
    (root / "etc/associations").write_text("\n".join(_associations(cluster)))


def _write_users(cluster: "Cluster") -> None:
    etc = cluster.root / "etc"
    users = cluster.users.items()
    passwd = [f"{name}:x:{uid}:{uid}::{cluster.home(name)}:/bin/bash\n" for name, uid in users]
    group = [f"{name}:x:{uid}:\n" for name, uid in users]
    (etc / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(passwd))
    (etc / "group").write_text(Path("/etc/group").read_text() + "".join(group))
    # Slurm binds to the address of the host's own name.
    (etc / "hosts").write_text(f"127.0.0.1 localhost {cluster.host}\n")
    for name, uid in users:
        cluster.home(name).mkdir(mode=0o700)
        os.chown(cluster.home(name), uid, uid)
    inside_script = cluster.root / "inside"
    inside_script.write_text(INSIDE.format(root=cluster.root))
    inside_script.chmod(0o755)


def _associations(cluster: "Cluster") -> Iterator[str]:
    """Lines for `sacctmgr load`: one call instead of one `sacctmgr add` per row.

    Users whom no account lists are of the first.
    """
    yield f"Cluster - '{cluster.name}':Fairshare=1:QOS='normal'"
    yield "Parent - 'root'"
    yield "User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1"
    for account in ACCOUNTS:
        yield f"Account - '{account}':Description='{account}':Organization='science':Fairshare=1"
    users_with_default: set[str] = set()
    listed = {user for users in ACCOUNTS.values() for user in users}
    first, *others = ACCOUNTS.items()
    unlisted = tuple(user for user in cluster.users if user not in listed)
    for account, users in ((first[0], first[1] + unlisted), *others):
        yield f"Parent - '{account}'"
        for user in users:
            default = "" if user in users_with_default else f"DefaultAccount='{account}':"
            users_with_default.add(user)
            yield f"User - '{user}':{default}Fairshare=1"
    yield ""
