"""One of several Slurm nodes on this machine, as an exporter on the node would see it.

All slurmd of a test cluster share one kernel. In a mount namespace of its own, an exporter sees the
cgroups of its node only, and the node with a GPU has a driver of NVIDIA made of files.
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


def exporter_prefix(
    cluster: slurm.Cluster, node: str, folder: Path, commands: str = ""
) -> tuple[str, ...]:
    """The command that starts the exporter of a node; its command line follows."""
    others = " ".join(each for each in cluster.nodes if each != node)
    path = folder / f"on-{node}"
    path.write_text(SCRIPT.format(others=others, more=commands))
    path.chmod(0o755)
    return (str(path),)


class Gpu:
    """A simulated NVIDIA GPU of a node, half busy."""

    mounts = """\
mount -t tmpfs driver /proc/driver && mkdir /proc/driver/nvidia || exit 125
echo "NVRM version: 570.86.15" >/proc/driver/nvidia/version"""

    def __init__(self, folder: Path) -> None:
        directory = folder / "nvml"
        directory.mkdir()
        compile_into(directory)
        nvml = FakeNvml(folder / "nvml.keys")
        nvml.add_gpus(1)
        self.environ = (f"LD_LIBRARY_PATH={directory}", f"FAKE_NVML={nvml.path}")
