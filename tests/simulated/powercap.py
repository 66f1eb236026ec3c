"""A powercap tree whose counters run, wrap and fail as the kernel's do."""

from pathlib import Path

INTEL_RANGE_UJ = 262143328850
INTEL_DRAM_RANGE_UJ = 65712999613
AMD_RANGE_UJ = 65532610987
PSYS_RANGE_UJ = 4294967295000000


class Zone:
    """One directory of the tree; `run()` increases its counter."""

    def __init__(self, path, name, range_uj, energy_uj=1_000_000):
        self.path = path
        self.range_uj = range_uj
        self.raw_uj = energy_uj
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        if range_uj is not None:
            (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self.write()

    def write(self):
        # In place and with constant length: concurrent readers never find the file empty.
        path = self.path / "energy_uj"
        with path.open("r+" if path.exists() else "w") as file:
            file.write(f"{round(self.raw_uj):24}\n")

    def run(self, joules):
        self.raw_uj += joules * 1e6
        if self.range_uj is not None:
            self.raw_uj %= self.range_uj
        self.write()

    def limit(self, number, name, watts, max_watts=None):
        (self.path / f"constraint_{number}_name").write_text(f"{name}\n")
        (self.path / f"constraint_{number}_power_limit_uw").write_text(f"{int(watts * 1e6)}\n")
        if max_watts is not None:
            (self.path / f"constraint_{number}_max_power_uw").write_text(
                f"{int(max_watts * 1e6)}\n"
            )


class Powercap:
    """`sysfs` and `procfs` of a machine with RAPL."""

    def __init__(self, tmp_path, vendor="GenuineIntel"):
        self.sysfs = Path(tmp_path) / "sys"
        self.procfs = Path(tmp_path) / "proc"
        self.root = self.sysfs / "class/powercap"
        self.root.mkdir(parents=True, exist_ok=True)
        self.procfs.mkdir(exist_ok=True)
        (self.procfs / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")

    def zone(self, directory, name, range_uj=INTEL_RANGE_UJ, energy_uj=1_000_000):
        return Zone(self.root / directory, name, range_uj, energy_uj)
