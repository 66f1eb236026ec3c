"""Slurm's JSON as written by different releases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.slurm.accounting.exit_codes import json_exit
from batchjob.schedulers.slurm.json_format import (
    INFINITE,
    SlurmJsonError,
    cpu_seconds,
    parse_count,
    raise_for_errors,
    rows,
    state_words,
    tres_counts,
    unwrap_numbers,
)


def number_object(value, *, known=True, infinite=False):
    return {"set": known, "infinite": infinite, "number": value}


def test_number_objects_become_numbers():
    document = {
        "a": [number_object(5), number_object(0, known=False), number_object(0, infinite=True)],
        "b": {"c": 1},
    }
    assert unwrap_numbers(document) == {"a": [5, None, INFINITE], "b": {"c": 1}}


def test_errors_are_raised_except_nothing_found():
    raise_for_errors({"errors": [{"error_number": 9003, "error": "Nothing found"}]})
    with pytest.raises(SlurmJsonError, match="Unable to connect: slurmdbd"):
        raise_for_errors({"errors": [{"error": "Unable to connect", "description": "slurmdbd"}]})
    with pytest.raises(SlurmJsonError, match="expected a JSON object"):
        raise_for_errors([])
    with pytest.raises(SlurmJsonError, match="expected a list 'nodes'"):
        rows({"jobs": []}, "nodes")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"status": "SUCCESS", "return_code": 0}, (None, None)),  # up to .39: unreliable
        ({"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 11, "name": "SEGV"}},
         (0, 11)),
        ({"status": ["ERROR"], "return_code": 3, "signal": {"id": None, "name": ""}},
         (3, 0)),
        ({"status": ["SUCCESS"], "return_code": 0, "signal": {"id": None}}, (0, 0)),
        ({"status": ["SIGNALED"], "return_code": None, "signal": {"id": 125}}, (0, 125)),
        (None, (None, None)),
    ],
)  # fmt: skip
def test_exit_code(value, expected):
    assert json_exit(value) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("COMPLETED", ("COMPLETED",)),
        (["RUNNING", "COMPLETING"], ("RUNNING", "COMPLETING")),
        ("IDLE+DRAIN", ("IDLE", "DRAIN")),
        ("", ()),
        (None, ()),
    ],
)
def test_state_words(value, words):
    assert state_words(value) == words


def test_tres():
    items = [
        {"type": "cpu", "name": None, "id": 1, "count": 4},
        {"type": "mem", "name": "", "id": 2, "count": 300},
        {"type": "energy", "name": "", "id": 3, "count": -2},
        {"type": "gres", "name": "gpu:a100", "id": 1001, "count": 2},
    ]
    assert tres_counts(items) == {"cpu": 4, "mem": 300, "gres/gpu:a100": 2}
    assert tres_counts(None) == {}


@pytest.mark.parametrize("value", [None, -2, 2**64 - 2, "5", True, INFINITE])
def test_invalid_count_is_none(value):
    assert parse_count(value) is None


def test_microseconds_may_exceed_a_second():
    assert cpu_seconds({"seconds": 25, "microseconds": 1289890}) == pytest.approx(26.28989)
    assert cpu_seconds(None) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_any_json_is_parsed_without_error(value):
    json_exit(unwrap_numbers(value))
    tres_counts(unwrap_numbers(value))
    state_words(unwrap_numbers(value))
    assert cpu_seconds(value) is None or cpu_seconds(value) >= 0
