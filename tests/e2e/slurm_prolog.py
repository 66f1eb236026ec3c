"""The shipped GPU prolog and epilog in a Slurm of a test's own, with a directory for each node."""

import shutil
from pathlib import Path

from tests.e2e import slurm

SHIPPED = Path(__file__).parents[2] / "deploy/slurm"
CONF = "PrologFlags=Alloc,contain\nProlog={root}/etc/prolog\nEpilog={root}/etc/epilog\n"
# The node's own directory, for several nodes share this machine: what an admin writes into
# /etc/default/batchjob_gpu_prolog, written into the script.
OWN_DIRECTORY = "DIRECTORY={root}/gpus/$SLURMD_NODENAME\nmkdir -p {root}/gpus\n"


def install(cluster: slurm.Cluster) -> None:
    """Put both where CONF names them."""
    for name in ("prolog", "epilog"):
        text = (SHIPPED / f"gpu_{name}.sh").read_text()
        marker = "[ -r /etc/default/batchjob_gpu_prolog ]"
        assert marker in text
        script = cluster.root / "etc" / name
        script.write_text(text.replace(marker, OWN_DIRECTORY.format(root=cluster.root) + marker))
        shutil.copymode(SHIPPED / f"gpu_{name}.sh", script)


def directory(cluster: slurm.Cluster, node: str) -> Path:
    """What a node's prolog writes to."""
    return cluster.root / "gpus" / node
