"""Counters of GPUs and jobs over a restart of the exporter."""

import json

import pytest

from collectors.gpu import checkpoint
from collectors.gpu.busy import BusyCounter, UtilizationSample
from collectors.gpu.devices import Gpu, Unit
from collectors.gpu.holders import Holding
from collectors.gpu.job_busy import JobBusyCounters
from collectors.gpu.reading import GpuReading
from collectors.host import Host
from collectors.jobs.view import JobLifetime, make_name
from collectors.state import StateFile

GPU = Gpu("nvidia", 0, "GPU-0", 0, "00000000:0B:00.0", "NVIDIA H200")
JOB, OTHER = make_name("slurm", "1", "alice"), make_name("slurm", "2", "bob")
LIVES = {JOB: JobLifetime(1000.0, None), OTHER: JobLifetime(1000.0, None)}
HOLDING = Holding(JOB, Unit(GPU), "prolog", 1.0, confirmed=True)
PARTS = ("boards", "jobs", "tenures", "free_before", "profiles")


class Exporter:
    """A GPU that is busy for half of the time, one job that holds it and one that holds none."""

    def __init__(self):
        self.board, self.jobs = BusyCounter(), JobBusyCounters()
        self.profiles = {}
        self.session = 1

    def read(self, since, now):
        """Add the samples of 0.2 s that the driver has then, and divide them."""
        begin = max(since, now - 14)
        stamps = [begin + n / 5 for n in range(1, round((now - begin) * 5) + 1)]
        samples = [UtilizationSample(round(at * 1e6), 0.5) for at in stamps]
        self.board.add(samples, self.session, now)
        reading = GpuReading(GPU, {}, {}, (), busy_samples=self.board.recent)
        self.jobs.update([reading], [HOLDING], LIVES, now)

    def run(self, since, until):
        for now in range(since + 10, until + 1, 10):
            self.read(now - 10, now)

    def busy_counter(self, uuid):
        """The GPU's counter, as a vendor gives it."""
        return self.board

    def save(self, directory):
        file = StateFile(Host(state=directory), checkpoint.FILE, "GPU counters")
        file.save(checkpoint.document({GPU.uuid: self.board}, self.jobs, self.profiles))
        return file

    def restarted(self, directory):
        new = Exporter()
        checkpoint.restore(self.save(directory).load(), new, new.jobs)
        return new

    def sums(self):
        sums = self.jobs.sums[JOB, GPU.uuid, ""]
        return sums["busy_seconds"], sums["observed_seconds"]


@pytest.fixture
def exporter():
    found = Exporter()
    found.run(1000, 1100)
    return found


def test_short_restart_loses_nothing(exporter, tmp_path):
    new = exporter.restarted(str(tmp_path))
    assert new.sums() == exporter.sums()
    new.read(1100, 1108)
    new.run(1108, 1178)
    exporter.run(1100, 1180)
    assert new.board.observed_seconds == pytest.approx(exporter.board.observed_seconds, abs=2.1)
    assert new.sums() == pytest.approx(exporter.sums(), abs=2.1)
    assert new.sums()[1] > 130, "also what was not divided yet when it was saved"


def test_long_pause_is_not_observed(exporter, tmp_path):
    new = exporter.restarted(str(tmp_path))
    before = new.board.observed_seconds
    new.read(1100, 1400)
    assert new.board.observed_seconds - before == pytest.approx(14, abs=0.5)


def test_free_time_of_a_job_goes_on(exporter, tmp_path):
    new = exporter.restarted(str(tmp_path))
    new.read(1100, 1108)
    assert new.jobs.free[OTHER] == exporter.jobs.free[OTHER]


@pytest.mark.parametrize("part", PARTS)
def test_damaged_file_is_refused_whole(exporter, tmp_path, part):
    exporter.save(str(tmp_path))
    document = json.loads((tmp_path / checkpoint.FILE).read_text())
    new = Exporter()
    with pytest.raises(ValueError, match="damaged state"):
        checkpoint.restore({**document, part: [["x"]]}, new, new.jobs)
    assert (new.jobs.sums, new.board.busy_seconds, new.profiles) == ({}, 0.0, {})


def test_profiles_and_peaks_go_on(exporter, tmp_path):
    sums = {"sm_active_seconds": 2.5, "profiled_seconds": 10.0}
    exporter.profiles = {(GPU.uuid, ""): sums}
    exporter.jobs.sums = {(JOB, GPU.uuid, ""): {**sums, "memory_peak_bytes": 65.0}}
    new = exporter.restarted(str(tmp_path))
    assert (new.profiles, new.jobs.sums) == (exporter.profiles, exporter.jobs.sums)
