"""What doctor reports of permissions, energy meters, GPUs and the service."""

import os

import pytest

from batchjob_cli.doctor.command import examine
from batchjob_cli.doctor.finding import ExaminedNode, Finding, run_checks
from collectors.energy.collector import EnergyOptions
from collectors.power.rapl import RaplOptions


def findings(host):
    report = examine(ExaminedNode(host))
    return {(subject, name): found for subject in report for name, found in report[subject].items()}


def test_capabilities(machine):
    held = machine({"proc/self/status": "Name:\tx\nCapEff:\t0000000000080000\n"})
    seen = findings(held)
    assert seen["permissions", "CAP_SYS_PTRACE"].result == "ok"
    assert seen["permissions", "CAP_DAC_READ_SEARCH"].result == "warning"
    assert "CAP_DAC_READ_SEARCH" in seen["permissions", "CAP_DAC_READ_SEARCH"].advice


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("rw", True),
        ("rw,hidepid=0", True),
        ("rw,hidepid=2,gid=5", False),
        ("rw,hidepid=invisible", False),
    ],
)
def test_hidepid(machine, options, shown):
    line = f"22 27 0:21 / /proc rw,relatime - proc proc {options}\n"
    seen = findings(machine({"proc/self/mountinfo": line}))["permissions", "hidepid"]
    assert (seen.result == "ok") == shown


def test_few_inotify_watches(machine):
    host = machine(
        {
            "proc/sys/fs/inotify/max_user_watches": "100\n",
            "proc/sys/fs/inotify/max_user_instances": "128\n",
        }
    )
    seen = findings(host)["permissions", "inotify"]
    assert seen == (
        "warning",
        "100 watches and 128 instances per user; short jobs may be missed",
        "sysctl -w fs.inotify.max_user_watches=8192",
    )


def energy_findings(host):
    return {name: finding for (about, name), finding in findings(host).items() if about == "energy"}


CRAY = {
    "sys/cray/pm_counters/power": "300 W 17 us\n",
    "sys/cray/pm_counters/energy": "9000 J 17 us\n",
    "sys/cray/pm_counters/freshness": "17\n",
    "sys/cray/pm_counters/startup": "1\n",
}
ZONE = "sys/class/powercap/intel-rapl:0"


def test_energy_meters(machine):
    seen = energy_findings(
        machine(
            {
                f"{ZONE}/name": "package-0\n",
                f"{ZONE}/energy_uj": "12\n",
                "sys/class/hwmon/hwmon0/name": "power_meter\n",
                "sys/class/hwmon/hwmon0/power1_average": "1\n",
                "sys/class/hwmon/hwmon1/name": "ina226\n",
                "sys/class/hwmon/hwmon1/power1_input": "1\n",
            }
        )
    )
    assert seen["rapl"] == ("ok", "zones package", "")
    assert seen["hwmon"].seen == (
        "power_meter/power1, ina226/power1; for the node: power_meter/power1"
    )
    assert seen["job energy"] == ("ok", "from hwmon (of hwmon, rapl)", "")


def test_sensor_of_unknown_part_is_a_warning(machine):
    seen = energy_findings(
        machine(
            {
                "sys/class/hwmon/hwmon1/name": "ina226\n",
                "sys/class/hwmon/hwmon1/power1_input": "1\n",
            }
        )
    )
    assert seen["hwmon"].result == "warning"
    assert "--collector.hwmon.node-sensor" in seen["hwmon"].advice
    assert seen["job energy"].result == "missing"


def test_rapl_alone_is_a_warning(machine):
    seen = energy_findings(machine({f"{ZONE}/name": "package-0\n", f"{ZONE}/energy_uj": "12\n"}))
    assert seen["job energy"].result == "warning"


def test_unreadable_rapl_zone(machine):
    seen = energy_findings(machine({f"{ZONE}/name": "package-0\n", f"{ZONE}/energy_uj/": None}))
    assert seen["rapl"].result == "missing"
    assert "Is a directory" in seen["rapl"].seen


@pytest.mark.parametrize("form", ["300 W 17 us", "plenty"])
def test_stale_or_unparsable_cray_counters(machine, form):
    seen = energy_findings(machine({**CRAY, "sys/cray/pm_counters/power": form}))
    assert seen["cray"].result == "missing"
    assert seen["job energy"].result == "missing"


def test_no_meters(machine):
    assert {name: finding.result for name, finding in energy_findings(machine()).items()} == {
        "rapl": "missing",
        "ipmi": "missing",
        "hwmon": "missing",
        "job energy": "missing",
    }


def test_chosen_meter_without_response(machine):
    host = machine({f"{ZONE}/name": "package-0\n", f"{ZONE}/energy_uj": "12\n"})
    options = {"rapl": RaplOptions(), "energy": EnergyOptions(source="cray")}
    check = examine(ExaminedNode(host, options=options))["energy"]["job energy"]
    assert check.seen == "cray does not respond"
    without = ExaminedNode(host, options={"rapl": RaplOptions()})
    assert "job energy" not in examine(without)["energy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_meter_readable_by_root_only(machine, tmp_path):
    host = machine({"dev/ipmi0": ""})
    (tmp_path / "dev/ipmi0").chmod(0)
    assert findings(host)["energy", "ipmi"].result == "missing"


def test_node_without_gpus_has_no_gpu_checks(machine):
    assert not [key for key in findings(machine()) if key[0] == "gpus"]


def test_gpus_without_driver(machine):
    seen = findings(machine({"dev/nvidia0": "", "dev/nvidiactl": ""}))
    assert seen["gpus", "nvidia"] == ("missing", "1 devices, no driver", "modprobe nvidia")
    assert ("gpus", "nvml") in seen


def test_failing_check_does_not_hide_others():
    def broken(node):
        raise OSError("gone")

    checks = {
        "a": broken,
        "b": lambda _: None,
        "c": lambda _: Finding("ok", "x"),
    }
    found = run_checks(ExaminedNode(), checks)
    assert [(name, each.result) for name, each in found.items()] == [("a", "warning"), ("c", "ok")]
