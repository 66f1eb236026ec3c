"""Durations, sizes and TRES strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.values import size_bytes
from batchjob.schedulers.fields import clock_duration
from batchjob.schedulers.lsf.formats import lsf_duration
from batchjob.schedulers.slurm.formats import (
    Resources,
    parse_resources,
    parse_tres,
    parse_tres_count,
    slurm_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0),
        ("00:00.001", 0.001),
        ("06:41:12", 24072),
        ("05:03.250", 303.25),
        ("1-02:03:04", 93784),
        ("49-17:00:00", 4294800),
        ("90", 5400),  # sbatch: minutes
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_slurm_duration(text, seconds):
    assert slurm_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["abc", "1:2:3:4", "-1:00", "1-", "1.5.2", "٣:00", " 1:00", "1:00\n"]
)
def test_invalid_slurm_duration(text):
    with pytest.raises(ValueError, match="expected a duration"):
        slurm_duration(text)


@given(st.integers(0, 10**7))
def test_slurm_duration_round_trip(seconds):
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    assert slurm_duration(f"{days}-{clock}" if days else clock) == seconds


@given(st.text())
def test_any_text_is_duration_or_value_error(text):
    for parse in (slurm_duration, clock_duration, lsf_duration):
        try:
            seconds = parse(text)
        except ValueError:
            continue
        assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:01:14", 74), ("100:00:00", 360000), ("01:05", 65), ("3600", 3600), ("12.5", 12.5)],
)
def test_pbs_duration(text, seconds):
    assert clock_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("16038 second(s)", 16038),
        ("12.3 second(s)", 12.3),
        ("1.5 minute(s)", 90),
        ("2 hours", 7200),
        ("1:02:03", 3723),
        ("42", 42),
        ("-", None),
        ("", None),
    ],
)
def test_lsf_duration(text, seconds):
    assert lsf_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024K", 1024**2),
        ("4000M", 4000 * 1024**2),
        ("1.50G", 3 * 1024**3 // 2),
        ("16777216kb", 16 * 1024**3),
        ("0b", 0),
        ("4gw", 32 * 1024**3),
        ("100w", 800),
        ("5.2 Gbytes", 5583457485),
        ("9 Mbytes", 9 * 1024**2),
        ("2T", 2 * 1024**4),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_size(text, size):
    assert size_bytes(text) == size


def test_size_without_unit_uses_default_unit():
    assert size_bytes("500", "M") == 500 * 1024**2
    assert size_bytes("500b", "M") == 500


@pytest.mark.parametrize("text", ["", "M", "-1", "4000Mc", "1e5", "1 000", "12\n"])
def test_invalid_size(text):
    with pytest.raises(ValueError, match="expected a size"):
        size_bytes(text)


@given(st.integers(0, 2**32), st.sampled_from(["", "K", "M", "kb", "gb", " Kbytes"]))
def test_whole_sizes_are_exact(number, unit):
    scale = {"": 1, "K": 1024, "M": 1024**2, "kb": 1024, "gb": 1024**3, " Kbytes": 1024}[unit]
    assert size_bytes(f"{number}{unit}") == number * scale


def test_typed_gpus_are_not_added_to_untyped():
    text = (
        "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=65536M,node=1,energy=18446744073709551614"
    )
    assert parse_resources(text) == Resources(8, 64 * 1024**3, 1, 2)


def test_typed_gpus_without_untyped_are_summed():
    assert parse_resources("gres/gpu:a100=2,gres/gpu:v100=1").gpus == 3


def test_missing_gpu_entry_is_none():
    assert parse_resources("cpu=2,mem=1G,node=2").gpus is None


def test_negative_count_is_unset():
    assert parse_tres_count("-2") is None


tres_names = st.sampled_from(
    ["cpu", "mem", "gres/gpu", "gres/gpu:a100", "node", "billing", "fs/disk"]
)


@given(st.dictionaries(tres_names, st.integers(0, 10**12).map(str)))
def test_tres_round_trip(values):
    assert parse_tres(",".join(f"{name}={value}" for name, value in values.items())) == values


@given(st.text() | st.from_regex(r"(cpu|mem|energy|gres/gpu)=\d{1,40}(\.\d+)?[KMGTPE]?"))
def test_resources_fit_signed_64_bit_or_raise_value_error(text):
    try:
        read = parse_resources(text)
    except ValueError:
        return
    assert all(value is None or 0 <= value < 2**63 for value in read)
