"""Answers of NVML, recorded by `python -m benchmarks.gpu record`, and read again.

Records of real drivers go to tests/fixtures/nvml/; each is replayed and must give a plausible
reading. The recorder itself is tested against the stand-in: what it records reads the same.
"""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import gpu as recorder
from collectors.gpu import nvml
from collectors.gpu.metrics import (
    ENERGY,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    THROTTLED,
    UTILIZATION,
)

RECORDS = sorted((Path(__file__).parents[2] / "fixtures" / "nvml").glob("*.txt"))


@pytest.fixture
def pynvml(fake_nvml):
    import pynvml

    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


def all_readings(pynvml):
    count = pynvml.nvmlDeviceGetCount()
    return [nvml.read(pynvml, index, 0.0, Counter()) for index in range(count)]


def test_recording_gives_the_same_readings(fake_nvml, pynvml, capsys):
    fake_nvml.add_gpus(2)
    fake_nvml.create_mig_instances(1, {0: {}, 3: {"gpu_instance": 5}})
    fake_nvml.set({"gpu0.process0": "10 5000 COMPUTE 4294967295 4294967295 40"})
    fake_nvml.set({"gpu1.process0": "11 6000 COMPUTE 5 0 0"})
    before = all_readings(pynvml)
    fake_nvml.path.write_text(recorder.record(pynvml))
    assert all_readings(pynvml) == before


def test_benchmark_reads_every_gpu(fake_nvml, pynvml, capsys):
    fake_nvml.add_gpus(2)
    assert recorder.main(["measure", "2"]) == 0
    assert capsys.readouterr().out.count("ms CPU per reading") == 2
    assert recorder.main(["guess"]) == 2


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_recorded_driver_gives_plausible_readings(fake_nvml, pynvml, path):
    fake_nvml.path.write_text(path.read_text())
    found = all_readings(pynvml)
    assert found
    for reading in found:
        values = reading.values
        assert reading.gpu.uuid.startswith("GPU-")
        assert 0 <= values.get(UTILIZATION, 0) <= 1
        assert 0 <= values.get(MEMORY_USED, 0) <= values.get(MEMORY_TOTAL, 0)
        assert 0 <= values.get(POWER, 0) <= 2 * values.get(POWER_LIMIT, 1000)


@pytest.mark.parametrize(
    ("record", "utilization", "shares"),
    [("idle", 0.0, []), ("busy", 0.5, [0.5]), ("shared", 1.0, [0.44, 0.56])],
)
def test_recorded_h100_shows_its_known_load(fake_nvml, pynvml, record, utilization, shares):
    """Nothing; matrix products half of each second; two processes with as much as they get."""
    (path,) = [each for each in RECORDS if each.stem == f"h100_driver_580_{record}"]
    fake_nvml.path.write_text(path.read_text())
    errors: Counter[tuple[str, str]] = Counter()
    reading = nvml.read(pynvml, 0, 0.0, errors)
    assert not errors
    assert reading.values[UTILIZATION] == pytest.approx(utilization, abs=0.06)
    assert sorted(each.utilization for each in reading.processes) == pytest.approx(shares, abs=0.06)
    assert reading.values.keys() >= {ENERGY, POWER, MEMORY_USED, *THROTTLED.values()}
