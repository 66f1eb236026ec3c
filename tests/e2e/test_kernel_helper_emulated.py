"""The helper on other kernels than this machine's: numbers, or a message that names what lacks."""

import re

import pytest

from tests.e2e import emulated

pytestmark = pytest.mark.e2e

# These tests load the programs on cgroup v1 and v2, and check what they count and leave behind.
TESTS = (
    "agree or exact or traffic or ids or later_job or parents or exclusive or rest_while or killed "
    "or namespace or without_bpf"
)
PYTEST = "pytest -q -n 0 -rs -p no:cacheprovider -m e2e tests/e2e/test_kernel_helper.py"
MESSAGES = ("CONFIG_DEBUG_INFO_BTF", "CONFIG_BPF_SYSCALL", "has no")


@pytest.mark.parametrize(
    "kernel", emulated.kernels() or [None], ids=lambda each: each and each.name
)
def test_a_kernel_gives_numbers_or_says_what_it_lacks(kernel, tmp_path, long_form):
    if not long_form:
        pytest.skip("only with --long: an emulated processor takes ten minutes")
    if why_not := emulated.missing():
        pytest.skip(why_not)
    log = emulated.run(f"{PYTEST} -k '{TESTS}'", tmp_path, kernel, hybrid=True)
    assert "exit status 0" in log, log
    if not re.search(r"\d+ passed", log):
        assert any(message in log for message in MESSAGES), log
