"""The table that translates between the names of a GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu.devices import (
    Gpu,
    GpuTable,
    Instance,
    Unit,
    read_device_majors,
    read_mig_minors,
)
from collectors.host import Host

A = "GPU-1a2b3c4d-0000-4000-8000-00000000000a"
B = "GPU-1a2b3c4e-0000-4000-8000-00000000000b"
FIRST = Instance("MIG-11111111-0000-5000-8000-000000000000", 1, 0, "3g.40gb", 3)
SECOND = Instance("MIG-22222222-0000-5000-8000-000000000000", 2, 0, "4g.40gb", 2)
THIRD = Instance("MIG-33333333-0000-5000-8000-000000000000", 2, 1, "4g.40gb", 2)
PLAIN = Gpu("nvidia", 0, A, 1, "00000000:3B:00.0", "H100")
SLICED = Gpu("nvidia", 1, B, 0, "00000000:86:00.0", "H100", True, 7, (FIRST, SECOND, THIRD))
TABLE = GpuTable([SLICED, PLAIN], {3: (0, 1, None), 4: (0, 1, 0), 12: (0, 2, 1)})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (A, [None]),
        (A.upper().replace("GPU", "gpu"), [None]),
        ("GPU-1a2b3c4d", [None]),
        ("GPU-1a2b3c4", []),
        ("00000000:3b:00.0", [None]),
        ("0000:3B:00.0", [None]),
        (B, [FIRST, SECOND, THIRD]),
        (FIRST.uuid, [FIRST]),
        ("MIG-2222", [SECOND]),
        (f"MIG-{B}/2/1", [THIRD]),
        (f"MIG-{B}/2/7", []),
        ("", []),
        ("GPU-", []),
        ("gpu:a100:2", []),
    ],
)
def test_lookup_by_name(name, expected):
    assert [unit.instance for unit in TABLE.by_name(name)] == expected


def test_lookup_by_number():
    assert TABLE.by_index(0) == (Unit(PLAIN),)
    assert TABLE.by_minor(1) == (Unit(PLAIN),)
    assert [unit.instance for unit in TABLE.by_minor(0)] == [FIRST, SECOND, THIRD]
    assert TABLE.by_index(2) == ()
    assert [unit.instance for unit in TABLE.by_gpu_instance(1, 2)] == [SECOND, THIRD]
    assert [unit.instance for unit in TABLE.by_capability(12)] == [THIRD]
    assert [unit.instance for unit in TABLE.by_capability(3)] == [FIRST]
    assert TABLE.by_capability(99) == ()


def test_ambiguous_index_finds_no_gpu():
    other = Gpu("amd", 0, "GPU-0123456789abcdef", 128, "00000000:C1:00.0", "MI210")
    assert GpuTable([PLAIN, other]).by_index(0) == ()
    assert GpuTable([PLAIN, other]).by_index(0, "amd") == (Unit(other),)


def test_instances_are_numbered_as_by_dcgm():
    assert [unit.gpu_instance for unit in TABLE.units] == ["", "1", "2/0", "2/1"]
    assert [round(unit.fraction * 7) for unit in TABLE.units] == [7, 3, 2, 2]


def test_instance_fractions_without_the_slices_of_the_gpu():
    gpu = Gpu("nvidia", 1, B, 0, "", "H100", True, None, (FIRST, SECOND, THIRD))
    assert [round(unit.fraction * 7) for unit in GpuTable([gpu]).units] == [3, 2, 2]


def test_mig_minors_are_read(tmp_path):
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "driver/nvidia-caps/mig-minors").write_text(
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu1/gi10/ci2/access 305\n"
    )
    assert read_mig_minors(Host(procfs=str(tmp_path))) == {
        3: (0, 0, None),
        4: (0, 0, 0),
        305: (1, 10, 2),
    }
    assert read_mig_minors(Host(procfs=str(tmp_path / "nowhere"))) == {}


def test_device_majors_are_read(tmp_path):
    (tmp_path / "devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-caps\n\nBlock devices:\n  8 sd\n"
    )
    assert read_device_majors(Host(procfs=str(tmp_path))) == {
        "mem": 1,
        "nvidia": 195,
        "nvidia-caps": 508,
    }
    assert read_device_majors(Host(procfs=str(tmp_path / "nowhere"))) == {}


@given(st.text())
def test_arbitrary_name_finds_only_gpus_of_the_node(name):
    assert set(TABLE.by_name(name)) <= set(TABLE.units)
