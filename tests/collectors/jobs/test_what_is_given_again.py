"""A scrape of jobs that did nothing since the last one makes nothing anew."""

from collectors.jobs.directory import Descriptors, Directory, Source, Trouble
from collectors.jobs.families import JobFamilies
from collectors.jobs.metrics import JOB_METRICS
from collectors.jobs.parsers import single
from collectors.jobs.reading import UNSEEN, CgroupReading, DeviceIO, job_reading
from collectors.metric import Labels


def reading(jobid="1", ended_at=None, **numbers):
    name = ("slurm", Labels(f'jobid="{jobid}"'), Labels('uid="7"'))
    return job_reading(name, (1.0, ended_at), CgroupReading(**numbers), UNSEEN)


def given(families, *readings):
    made = families.of(readings)
    return {family.metric.name.removeprefix("batchjob_job_"): family.samples for family in made}


def test_every_row_of_the_table_names_a_field():
    JobFamilies(JOB_METRICS)


def test_a_number_that_did_not_change_comes_in_the_same_sample():
    families = JobFamilies(JOB_METRICS)
    first = given(families, reading(memory_current=10, memory_peak=20))
    second = given(families, reading(memory_current=11, memory_peak=20))
    assert second["memory_peak_bytes"][0] is first["memory_peak_bytes"][0]
    assert second["memory_current_bytes"] == [('jobid="1"', 11)]


def test_a_number_that_is_no_longer_read_has_no_sample():
    families = JobFamilies(JOB_METRICS)
    given(families, reading(memory_current=10))
    assert "memory_current_bytes" not in given(families, reading())


def test_an_ended_job_keeps_counters_beside_running_ones():
    families = JobFamilies(JOB_METRICS)
    ended = reading("1", ended_at=9.0, memory_current=1, memory_peak=2)
    shown = given(families, ended, reading("2", memory_current=3, memory_peak=4))
    assert shown["memory_current_bytes"] == [('jobid="2"', 3)]
    assert shown["memory_peak_bytes"] == [('jobid="1"', 2), ('jobid="2"', 4)]
    assert shown["end_time_seconds"] == [('jobid="1"', 9.0)]


def test_devices_come_and_go():
    families = JobFamilies(JOB_METRICS)
    one, two = DeviceIO(1, 2, 3, 4), DeviceIO(5, 6, 7, 8)
    assert given(families, reading(io={"sda": one}))["io_reads_total"] == [
        ('jobid="1",device="sda"', 3)
    ]
    assert given(families, reading(io={"sdb": two}))["io_reads_total"] == [
        ('jobid="1",device="sdb"', 7)
    ]
    assert "io_reads_total" not in given(families, reading(io={}))


def test_no_jobs():
    assert given(JobFamilies(JOB_METRICS)) == {"batchjob_jobs": []}


def test_a_directory_says_whether_it_has_something_new(tmp_path):
    file = tmp_path / "memory.current"
    file.write_text("1\n")
    trouble = Trouble()
    directory = Directory(
        str(tmp_path),
        [Source("memory.current", "memory", single("bytes"))],
        Descriptors(9),
        trouble,
    )
    try:
        assert directory.read(0.0)
        known = directory.values
        assert not directory.read(0.1)
        assert directory.values is known
        file.write_text("2\n")
        assert directory.read(0.2)
        assert directory.values == {"bytes": 2}
        file.write_text("half")
        assert directory.read(0.3)
        assert directory.values == {}
        file.write_text("2\n")
        assert directory.read(0.4)
        assert directory.values == {"bytes": 2}
        file.write_text("3" * 19 + "\n")
        assert directory.read(0.4)
        assert directory.values == {"bytes": int("3" * 19)}
    finally:
        directory.close()
    assert trouble.counts() == {"malformed": 1}


def test_a_file_that_grows_is_read_to_its_end(tmp_path):
    file = tmp_path / "memory.stat"
    file.write_text("anon 1\n")
    source = Source("memory.stat", "memory", lambda data: {"size": len(data)})
    directory = Directory(str(tmp_path), [source], Descriptors(9), Trouble())
    try:
        for size in (7, 490, 500, 501, 3000, 40, 5000):
            file.write_text("x" * (size - 1) + "\n")
            directory.read(0.0)
            assert directory.values == {"size": size}
    finally:
        directory.close()
