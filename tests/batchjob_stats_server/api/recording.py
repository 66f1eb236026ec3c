"""Sample files for a server to read."""

from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.options import SamplesOptions
from batchjob_stats_server.turns import TimeSeriesPool, Turns


def job_sample(seconds, **more):
    """A sample of a job that uses one CPU."""
    values = {
        SampleKey("cpu_user_seconds"): seconds % 100_000,
        SampleKey("cpu_system_seconds"): 0.0,
    }
    return JobSample(
        float(seconds), values | {SampleKey(name): value for name, value in more.items()}
    )


def open_sample_file(samples, jobid, user, begin):
    """Begin a sample file that the test goes on writing."""
    return Writer(folder_of(samples, jobid), SampleHeader("slurm", jobid, user, "n001", 5.0), begin)


def write_sample_file(samples, jobid, user, times):
    """Write a complete sample file; returns its path."""
    writer = open_sample_file(samples, jobid, user, times[0])
    for each in times:
        writer.write(job_sample(each))
    writer.close()
    return writer.path


def with_samples(services, samples, streams=4):
    """The same services, reading samples."""
    options = SamplesOptions(str(samples), streams)
    return services._replace(
        settings=services.settings._replace(samples=options),
        streams=Turns(streams, 2, "the sample files"),
        stores=TimeSeriesPool([SampleHistory(samples)]),
    )
