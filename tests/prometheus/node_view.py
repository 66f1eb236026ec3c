"""One of several Slurm nodes of this machine, as an exporter on it would see it.

The slurmd of a test's cluster share one kernel. In a mount namespace of its own an exporter sees
the cgroups of its node alone, and the node that has a GPU has NVIDIA's driver, made of files.
"""

from pathlib import Path

from tests.e2e import slurm
from tests.fake_nvml.library import FakeNvml, compile_into

SCRIPT = """\
#!/bin/sh
exec unshare --mount --propagation private -- /bin/sh -c '
for other in {others}; do
  for top in /sys/fs/cgroup/*/slurm_$other; do mount -t tmpfs hidden "$top" || exit 125; done
done
{more}
exec "$@"' view "$@"
"""


def of(cluster: slurm.Cluster, node: str, folder: Path, more: str = "") -> tuple[str, ...]:
    """What stands before the command line of the node's exporter."""
    others = " ".join(each for each in cluster.nodes if each != node)
    path = folder / f"on-{node}"
    path.write_text(SCRIPT.format(others=others, more=more))
    path.chmod(0o755)
    return (str(path),)


class Gpu:
    """An NVIDIA GPU that a node seems to have, half busy."""

    mounts = """\
mount -t tmpfs driver /proc/driver && mkdir /proc/driver/nvidia || exit 125
echo "NVRM version: 570.86.15" >/proc/driver/nvidia/version"""

    def __init__(self, folder: Path) -> None:
        directory = folder / "nvml"
        directory.mkdir()
        compile_into(directory)
        nvml = FakeNvml(folder / "nvml.keys")
        nvml.gpus(1)
        self.environ = (f"LD_LIBRARY_PATH={directory}", f"FAKE_NVML={nvml.path}")
