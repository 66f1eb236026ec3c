"""Each alert fires when its fault is brought about in the real programs, and not before."""

import shutil

import pytest

from tests.prometheus import chain, exporter_faults, stats_faults

FAULTS = {**exporter_faults.FAULTS, **stats_faults.FAULTS}

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


@pytest.mark.parametrize("fault", dict.fromkeys(FAULTS.values()), ids=lambda each: each.__name__)
def test_the_fault_makes_its_alerts_fire(fault, tmp_path):
    recording = chain.Recording()
    fault(tmp_path, recording)
    for alert in FAULTS:
        if FAULTS[alert] is fault:
            recording.fires(alert, tmp_path)


def test_every_alert_has_its_fault():
    assert FAULTS.keys() == chain.rules().keys()
