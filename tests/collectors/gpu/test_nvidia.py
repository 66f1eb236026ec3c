"""NVML over time: hanging calls, lost GPUs, reloaded drivers."""

import json
import os
import sys
import textwrap

import pytest

from collectors.gpu import nvidia as module
from collectors.gpu.metrics import POWER
from collectors.host import Host
from tests.helpers.processes import run


def power_by_index(driver):
    """Index → power of the GPUs that answer now."""
    return {
        each.gpu.index: each.observed.value.values.get(POWER)
        for each in driver.known_gpus()
        if each.observed
    }


def test_every_gpu_is_read(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(4)
    driver.start()
    eventually(lambda: power_by_index(driver) == dict.fromkeys(range(4), 250.0))
    assert driver.complete
    assert driver.version == "570.86.15"
    errors = driver.errors()
    assert errors["3", "gpu_is_lost"] == 0, "`increase()` does not count what a series begins with"
    assert not any(errors.values())


def test_hanging_gpu_does_not_delay_others(fake_nvml, driver, eventually, clock):
    fake_nvml.add_gpus(3)
    driver.start()
    eventually(lambda: len(power_by_index(driver)) == 3)
    fake_nvml.set({"gpu1.nvmlDeviceGetPowerUsage.hangs": 1, "gpu0.power": 300_000})
    eventually(lambda: power_by_index(driver)[0] == 300.0)
    clock.offset_seconds += 10
    eventually(lambda: power_by_index(driver) == {0: 300.0, 2: 250.0})
    assert [each.gpu.index for each in driver.known_gpus()] == [0, 1, 2], "it is still known"
    fake_nvml.drop("gpu1.nvmlDeviceGetPowerUsage.hangs")
    eventually(lambda: len(power_by_index(driver)) == 3)


def test_driver_is_incomplete_while_a_gpu_hangs_from_the_start(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(2)
    fake_nvml.set({"gpu1.nvmlDeviceGetHandleByIndex_v2.hangs": 1})
    driver.start()
    eventually(lambda: power_by_index(driver) == {0: 250.0})
    assert not driver.complete
    fake_nvml.drop("gpu1.nvmlDeviceGetHandleByIndex_v2.hangs")
    eventually(lambda: driver.complete)


def test_lost_gpu_is_counted_and_others_are_read(fake_nvml, driver, eventually, clock):
    fake_nvml.add_gpus(2)
    driver.start()
    eventually(lambda: len(power_by_index(driver)) == 2)
    fake_nvml.set({"gpu1.returns": 15, "gpu0.power": 1000})
    eventually(lambda: driver.errors().get(("1", "gpu_is_lost")))
    clock.offset_seconds += 10
    eventually(lambda: power_by_index(driver) == {0: 1.0})
    assert [each.gpu.index for each in driver.known_gpus()] == [0, 1]


def test_nvml_is_restarted_for_a_lost_gpu(fake_nvml, driver, eventually, monkeypatch):
    monkeypatch.setattr(module, "RESTART_INTERVAL_SECONDS", 0.1)
    fake_nvml.add_gpus(2)
    driver.start()
    eventually(lambda: len(power_by_index(driver)) == 2)
    first = driver.session
    fake_nvml.set({"gpu1.returns": 15})
    eventually(lambda: driver.session not in (None, first))
    fake_nvml.drop("gpu1.returns")
    eventually(lambda: len(power_by_index(driver)) == 2)


@pytest.mark.parametrize("code", [1, 9])
def test_nvml_is_restarted_after_a_driver_reload(fake_nvml, driver, eventually, code):
    fake_nvml.add_gpus(2)
    fake_nvml.set({"driver.generation": 1, "driver.error": code})
    driver.start()
    eventually(lambda: len(power_by_index(driver)) == 2)
    series = driver.known_gpus()[0].observed.value.energy.series
    fake_nvml.set({"driver.generation": 2, "gpu0.power": 7000, "gpu1.power": 7000})
    eventually(lambda: power_by_index(driver) == {0: 7.0, 1: 7.0})
    assert driver.known_gpus()[0].observed.value.energy.series > series


def test_gpu_count_may_change(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(3)
    driver.start()
    eventually(lambda: len(power_by_index(driver)) == 3)
    fake_nvml.set(count=2)
    eventually(lambda: [each.gpu.index for each in driver.known_gpus()] == [0, 1])
    fake_nvml.set(count=3)
    eventually(lambda: len(power_by_index(driver)) == 3)


def test_failed_initialisation_is_retried(fake_nvml, driver, eventually):
    fake_nvml.add_gpus(1)
    fake_nvml.set({"nvmlInitWithFlags.returns": 9})
    driver.start()
    eventually(lambda: driver.errors().get(("", "driver_not_loaded"), 0) >= 2)
    assert driver.known_gpus() == []
    fake_nvml.drop("nvmlInitWithFlags.returns")
    eventually(lambda: power_by_index(driver) == {0: 250.0})


def test_pynvml_is_not_imported_without_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib, "import_module", pytest.fail)
    driver = module.NvidiaGpus(Host(procfs=str(tmp_path)), 60)
    driver.scan()
    assert driver.known_gpus() == []
    assert not driver.errors()


def run_in_subprocess(script, environment, **values):
    """What the script prints as JSON, for what the loader decides once per process."""
    code = "import json, sys\nvalues = json.loads(sys.argv[1])\n" + textwrap.dedent(script)
    done = run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(values)],
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SCAN = """
    from collectors.gpu.nvidia import NvidiaGpus
    from collectors.host import Host

    driver = NvidiaGpus(Host(procfs=values["procfs"]), 60)
    def scan():
        try:
            driver.scan()
        except Exception as error:
            return type(error).__name__
"""


def test_missing_library_is_counted_as_an_error(host):
    answer = run_in_subprocess(
        SCAN + "    print(json.dumps([scan(), {e: n for (_, e), n in driver.errors().items()}]))",
        {"LD_LIBRARY_PATH": "/nonexistent"},
        procfs=host.procfs,
    )
    if answer[0] is None:
        pytest.skip("this machine has an NVML of its own")
    assert answer == ["NVMLError_LibraryNotFound", {"library_not_found": 1}]


def test_updated_driver_is_read_with_the_library_reloaded(nvml_library, fake_nvml, host):
    fake_nvml.add_gpus(1)
    fake_nvml.set(library=1)
    answer = run_in_subprocess(
        SCAN
        + """
    import pathlib
    results = [scan()]
    path = pathlib.Path(values["keys"])
    path.write_text(path.read_text().replace("library 1", "library 2"))
    scan(), scan()  # one meets the mismatch, perhaps a GPU's thread before it; one starts again
    results += [scan(), driver.version, {e: True for (_, e), n in driver.errors().items() if n}]
    driver.stop()
    print(json.dumps(results))
    """,
        {"LD_LIBRARY_PATH": str(nvml_library[0].parent)},
        procfs=host.procfs,
        keys=str(fake_nvml.path),
    )
    assert answer[:3] == [None, None, "570.86.15"]
    assert answer[3]["lib_rm_version_mismatch"]
