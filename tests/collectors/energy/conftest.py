"""A node of 64 CPUs with simulated clocks."""

import pytest

from collectors.host import Host
from tests.collectors.energy.fake_collectors import BOOT_ID
from tests.simulated.node import Time, write_stat
from tests.simulated.powercap import Powercap


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def host(tmp_path, time):
    tree = Powercap(tmp_path)
    (tree.procfs / "sys/kernel/random").mkdir(parents=True)
    (tree.procfs / "sys/kernel/random/boot_id").write_text(BOOT_ID + "\n")
    write_stat(tree.procfs, 0, 1000, 64)
    return Host(
        sysfs=str(tree.sysfs),
        procfs=str(tree.procfs),
        clock=time.clock,
        monotonic=time.monotonic,
    )
