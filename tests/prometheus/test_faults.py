"""Each alert fires when its fault occurs in the real programs, and not before."""

import shutil

import pytest

from tests.prometheus import chain, exporter_faults, stats_faults

FAULTS = {**exporter_faults.FAULTS, **stats_faults.FAULTS}

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


@pytest.mark.parametrize("fault", dict.fromkeys(FAULTS.values()), ids=lambda each: each.__name__)
def test_fault_fires_its_alerts(fault, tmp_path):
    recording = chain.Recording()
    fault(tmp_path, recording)
    for alert in FAULTS:
        if FAULTS[alert] is fault:
            recording.assert_fires(alert, tmp_path)


def test_every_alert_has_a_fault():
    assert FAULTS.keys() == chain.alert_rules().keys()
