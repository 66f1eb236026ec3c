"""Metric families built from the readings of jobs."""

from batchjob.quantities.job import METRIC_GROUPS
from batchjob.quantities.reading import CgroupReading, DeviceIO, job_reading
from collectors.jobs.families import job_families, job_metrics
from collectors.jobs.view import JobIdentity, JobName
from collectors.metric import Labels


def identity_and_reading(jobid="1", ended_at=None, **numbers):
    name = JobName("slurm", jobid, "alice", Labels(f'jobid="{jobid}"'))
    identity = JobIdentity(name, 7, Labels(f'jobid="{jobid}",uid="7"'))
    return identity, job_reading(1.0, ended_at, CgroupReading(**numbers))


def built_samples(*readings):
    shown = {
        family.metric.name.removeprefix("batchjob_job_"): list(family.all_samples())
        for family in job_families(job_metrics(METRIC_GROUPS), readings)
    }
    return {name: samples for name, samples in shown.items() if samples}


def test_families_keep_the_order_of_jobs():
    shown = built_samples(
        identity_and_reading("2"),
        identity_and_reading("1", memory_current=3, memory_peak=2),
    )
    assert [of for of, _ in shown["info"]] == ['jobid="2",uid="7"', 'jobid="1",uid="7"']
    assert shown["memory_current_bytes"] == [('jobid="1"', 3)]


def test_value_that_is_no_longer_read_has_no_sample():
    built_samples(identity_and_reading(memory_current=10))
    assert "memory_current_bytes" not in built_samples(identity_and_reading())


def test_ended_job_has_counters_but_no_gauges():
    ended = identity_and_reading("1", ended_at=9.0, memory_current=1, memory_peak=2)
    shown = built_samples(ended, identity_and_reading("2", memory_current=3, memory_peak=4))
    assert shown["memory_current_bytes"] == [('jobid="2"', 3)]
    assert shown["memory_peak_bytes"] == [('jobid="1"', 2), ('jobid="2"', 4)]
    assert shown["end_time_seconds"] == [('jobid="1"', 9.0)]


def test_devices_may_appear_and_disappear():
    one, two = DeviceIO(1, 2, 3, 4), DeviceIO(5, 6, 7, 8)
    assert built_samples(identity_and_reading(io={"sda": one}))["io_reads_total"] == [
        ('jobid="1",device="sda"', 3)
    ]
    assert built_samples(identity_and_reading(io={"sdb": two}))["io_reads_total"] == [
        ('jobid="1",device="sdb"', 7)
    ]
    assert "io_reads_total" not in built_samples(identity_and_reading(io={}))


def test_no_jobs_have_no_samples():
    assert built_samples() == {}
