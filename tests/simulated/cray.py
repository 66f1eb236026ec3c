"""The pm_counters of an HPE Cray node."""


class Controller:
    """A node controller that writes its counters."""

    def __init__(self, sysfs):
        self.directory = sysfs / "cray/pm_counters"
        self.directory.mkdir(parents=True)
        self.joules = {"": 2_000_000, "cpu_": 900_000, "memory_": 100_000, "accel0_": 800_000}
        self.freshness, self.startup = 17, 1700000000
        for name, value in (("version", 3), ("generation", 4), ("raw_scan_hz", 10)):
            (self.directory / name).write_text(f"{value}\n")
        self.update()

    def update(self, watts=500, seconds=0):
        self.freshness += 1
        stamp = 1_700_000_000_000_000 + self.freshness * 100_000
        for prefix in self.joules:
            self.joules[prefix] += watts * seconds
            self.write(f"{prefix}energy", f"{self.joules[prefix]} J {stamp} us")
            self.write(f"{prefix}power", f"{watts} W {stamp} us")
        self.write("cpu_temp", f"45 C {stamp} us")
        self.write("freshness", self.freshness)
        self.write("startup", self.startup)

    def write(self, name, text):
        (self.directory / name).write_text(f"{text}\n")
