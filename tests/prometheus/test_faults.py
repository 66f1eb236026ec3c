"""Each alert fires when its fault is brought about in the real programs, and not before."""

import shutil

import pytest

from tests.prometheus import chain, exporter_faults, stats_faults

FAULTS = {**exporter_faults.FAULTS, **stats_faults.FAULTS}

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


@pytest.mark.parametrize("alert", FAULTS)
def test_the_fault_makes_it_fire(alert, tmp_path):
    recording = chain.Recording()
    FAULTS[alert](tmp_path, recording)
    recording.fires(alert, tmp_path)
