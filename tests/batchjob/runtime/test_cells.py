import pytest

from batchjob.runtime.cells import harmless


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_text_begins_like_a_formula(begin):
    assert harmless(f"{begin}1+1") == f"'{begin}1+1"


@pytest.mark.parametrize("value", ["train", "", "a=b", -1, 1.5, None, "１"])
def test_all_else_stays(value):
    assert harmless(value) == value
