"""NVML over time: hanging calls, lost GPUs, reloaded drivers."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from collectors.gpu.metrics import POWER
from collectors.gpu.nvidia import driver as module
from collectors.host import Host


def answering(driver):
    """Index → power of the GPUs that answer now."""
    return {
        each.gpu.index: each.observed.value.values.get(POWER)
        for each in driver.known_gpus()
        if each.observed
    }


def test_every_gpu_is_read(fake, driver, eventually):
    fake.gpus(4)
    driver.start()
    eventually(lambda: answering(driver) == dict.fromkeys(range(4), 250.0))
    assert driver.complete
    assert driver.version == "570.86.15"
    assert not driver.errors()


def test_a_hanging_gpu_delays_no_other(fake, driver, eventually, clock):
    fake.gpus(3)
    driver.start()
    eventually(lambda: len(answering(driver)) == 3)
    fake.set({"gpu1.nvmlDeviceGetPowerUsage.hangs": 1, "gpu0.power": 300_000})
    eventually(lambda: answering(driver)[0] == 300.0)
    clock.ahead += 10
    eventually(lambda: answering(driver) == {0: 300.0, 2: 250.0})
    assert [each.gpu.index for each in driver.known_gpus()] == [0, 1, 2], "it is still known"
    fake.drop("gpu1.nvmlDeviceGetPowerUsage.hangs")
    eventually(lambda: len(answering(driver)) == 3)


def test_a_gpu_that_hangs_from_the_start_leaves_the_table_incomplete(fake, driver, eventually):
    fake.gpus(2)
    fake.set({"gpu1.nvmlDeviceGetHandleByIndex_v2.hangs": 1})
    driver.start()
    eventually(lambda: answering(driver) == {0: 250.0})
    assert not driver.complete
    fake.drop("gpu1.nvmlDeviceGetHandleByIndex_v2.hangs")
    eventually(lambda: driver.complete)


def test_a_lost_gpu_is_counted_and_the_others_go_on(fake, driver, eventually, clock):
    fake.gpus(2)
    driver.start()
    eventually(lambda: len(answering(driver)) == 2)
    fake.set({"gpu1.returns": 15, "gpu0.power": 1000})
    eventually(lambda: driver.errors().get(("1", "gpu_is_lost")))
    clock.ahead += 10
    eventually(lambda: answering(driver) == {0: 1.0})
    assert [each.gpu.index for each in driver.known_gpus()] == [0, 1]


def test_after_a_while_nvml_is_begun_anew_for_a_lost_gpu(fake, driver, eventually, monkeypatch):
    monkeypatch.setattr(module, "RESTART_INTERVAL_SECONDS", 0.1)
    fake.gpus(2)
    driver.start()
    eventually(lambda: len(answering(driver)) == 2)
    first = driver.session
    fake.set({"gpu1.returns": 15})
    eventually(lambda: driver.session not in (None, first))
    fake.drop("gpu1.returns")
    eventually(lambda: len(answering(driver)) == 2)


@pytest.mark.parametrize("code", [1, 9])
def test_a_reloaded_driver_is_opened_anew(fake, driver, eventually, code):
    fake.gpus(2)
    fake.set({"driver.generation": 1, "driver.error": code})
    driver.start()
    eventually(lambda: len(answering(driver)) == 2)
    series = driver.known_gpus()[0].observed.value.energy.series
    fake.set({"driver.generation": 2, "gpu0.power": 7000, "gpu1.power": 7000})
    eventually(lambda: answering(driver) == {0: 7.0, 1: 7.0})
    assert driver.known_gpus()[0].observed.value.energy.series > series


def test_the_count_of_gpus_may_change(fake, driver, eventually):
    fake.gpus(3)
    driver.start()
    eventually(lambda: len(answering(driver)) == 3)
    fake.set(count=2)
    eventually(lambda: [each.gpu.index for each in driver.known_gpus()] == [0, 1])
    fake.set(count=3)
    eventually(lambda: len(answering(driver)) == 3)


def test_a_driver_that_does_not_start_is_asked_again(fake, driver, eventually):
    fake.gpus(1)
    fake.set({"nvmlInitWithFlags.returns": 9})
    driver.start()
    eventually(lambda: driver.errors().get(("", "driver_not_loaded"), 0) >= 2)
    assert driver.known_gpus() == []
    fake.drop("nvmlInitWithFlags.returns")
    eventually(lambda: answering(driver) == {0: 250.0})


def test_a_node_without_the_driver_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib, "import_module", pytest.fail)
    driver = module.NvidiaGpus(Host(procfs=str(tmp_path)), 60)
    driver.scan()
    assert driver.known_gpus() == []
    assert not driver.errors()


def in_another_process(script, environment, **values):
    """What the script prints as JSON; for what the loader decides once per process."""
    code = "import json, sys\nvalues = json.loads(sys.argv[1])\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(values)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SCAN = """
    from collectors.gpu.nvidia.driver import NvidiaGpus
    from collectors.host import Host

    driver = NvidiaGpus(Host(procfs=values["procfs"]), 60)
    def scan():
        try:
            driver.scan()
        except Exception as error:
            return type(error).__name__
"""


def test_without_the_library_the_error_is_named_and_nothing_else_happens(host):
    answer = in_another_process(
        SCAN + "    print(json.dumps([scan(), {e: n for (_, e), n in driver.errors().items()}]))",
        {"LD_LIBRARY_PATH": "/nonexistent"},
        procfs=host.procfs,
    )
    if answer[0] is None:
        pytest.skip("this machine has an NVML of its own")
    assert answer == ["NVMLError_LibraryNotFound", {"library_not_found": 1}]


def test_an_updated_driver_needs_the_new_library(nvml_library, fake, host):
    fake.gpus(1)
    fake.set(library=1)
    answer = in_another_process(
        SCAN
        + """
    import pathlib
    said = [scan()]
    path = pathlib.Path(values["keys"])
    path.write_text(path.read_text().replace("library 1", "library 2"))
    scan(), scan()  # one meets the mismatch, perhaps a GPU's thread before it; one starts again
    said += [scan(), driver.version, {e: n > 0 for (_, e), n in driver.errors().items()}]
    driver.stop()
    print(json.dumps(said))
    """,
        {"LD_LIBRARY_PATH": str(nvml_library[0].parent)},
        procfs=host.procfs,
        keys=str(fake.path),
    )
    assert answer == [None, None, "570.86.15", {"lib_rm_version_mismatch": True}]
