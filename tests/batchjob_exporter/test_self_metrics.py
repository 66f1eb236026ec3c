"""The exporter's own process, as prometheus-client shows it."""

import os

import pytest
from prometheus_client.process_collector import ProcessCollector

from batchjob_exporter.self_metrics import process_reader


def test_families_match_prometheus_client():
    ours = {family.metric.name: family.metric.type for family in process_reader()()}
    theirs = {
        family.samples[0].name: family.type for family in ProcessCollector(registry=None).collect()
    }
    assert ours == theirs


def test_values_match_prometheus_client():
    ours = {family.metric.name: family.samples[0][1] for family in process_reader()()}
    theirs = {
        sample.name: sample.value
        for family in ProcessCollector(registry=None).collect()
        for sample in family.samples
    }
    assert ours["process_max_fds"] == theirs["process_max_fds"]
    # prometheus-client adds to a whole second of /proc/stat.
    assert ours["process_start_time_seconds"] == pytest.approx(
        theirs["process_start_time_seconds"], abs=2
    )
    assert ours["process_cpu_seconds_total"] == pytest.approx(
        theirs["process_cpu_seconds_total"], abs=0.5
    )
    assert ours["process_resident_memory_bytes"] == pytest.approx(
        theirs["process_resident_memory_bytes"], rel=0.1
    )


@pytest.mark.parametrize("size_known", [True, False])
def test_open_files_are_counted_on_old_kernels(tmp_path, size_known, monkeypatch):
    """The size of /proc/self/fd was 0 before Linux 6.2."""
    (tmp_path / "self/fd").mkdir(parents=True)
    (tmp_path / "self/stat").write_text("7 (odd ) name) S " + " ".join(["100"] * 40))
    for number in range(3):
        (tmp_path / f"self/fd/{number}").touch()
    stat = os.stat

    def stat_with_size(path, **more):
        found = list(stat(path, **more))
        if str(path).endswith("/self/fd"):
            found[6] = 3 if size_known else 0
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", stat_with_size)
    shown = {f.metric.name: f.samples[0][1] for f in process_reader(str(tmp_path))()}
    assert shown["process_open_fds"] == 3
