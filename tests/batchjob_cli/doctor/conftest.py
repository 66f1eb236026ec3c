"""Made-up machines: a dictionary of paths and texts becomes a Host."""

from pathlib import Path

import pytest

from collectors.host import Host


@pytest.fixture
def machine(tmp_path):
    """None makes a directory: `machine({"proc/1/comm": "slurmd", "sys/fs/cgroup/lsf/": None})`."""

    def make(files=()):
        for path, text in dict(files).items():
            file = Path(tmp_path / path)
            if text is None:
                file.mkdir(parents=True, exist_ok=True)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        return Host(
            procfs=str(tmp_path / "proc"),
            sysfs=str(tmp_path / "sys"),
            cgroupfs=str(tmp_path / "sys/fs/cgroup"),
            dev=str(tmp_path / "dev"),
        )

    return make
