"""The shipped GPU prolog and epilog in a test's Slurm cluster, with a directory per node."""

import shutil
from pathlib import Path

from tests.e2e import slurm

SHIPPED_SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"
CONF = "PrologFlags=Alloc,contain\nProlog={root}/etc/prolog\nEpilog={root}/etc/epilog\n"
# A directory per node, as several nodes share this machine: the setting that an admin writes into
# /etc/default/batchjob_gpu_prolog is inserted into the script.
NODE_DIRECTORY = "DIRECTORY={root}/gpus/$SLURMD_NODENAME\nmkdir -p {root}/gpus\n"


def install(cluster: slurm.Cluster) -> None:
    """Write both scripts to the paths that CONF names."""
    for name in ("prolog", "epilog"):
        text = (SHIPPED_SCRIPTS / f"gpu_{name}.sh").read_text()
        marker = "[ -r /etc/default/batchjob_gpu_prolog ]"
        assert marker in text
        script = cluster.root / "etc" / name
        script.write_text(text.replace(marker, NODE_DIRECTORY.format(root=cluster.root) + marker))
        shutil.copymode(SHIPPED_SCRIPTS / f"gpu_{name}.sh", script)


def gpu_directory(cluster: slurm.Cluster, node: str) -> Path:
    """The directory that a node's prolog writes to."""
    return cluster.root / "gpus" / node
