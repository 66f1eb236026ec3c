"""Sample files for a server to read."""

from batchjob_stats_db.history.samples import SampleHistory
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.sample import Name, Sample, Who
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_server.histories import Histories
from batchjob_stats_server.options import SamplesOptions
from batchjob_stats_server.streams import Streams


def at(seconds, **more):
    """A sample of a job that uses one CPU."""
    values = {Name("cpu_user_seconds"): seconds % 100_000, Name("cpu_system_seconds"): 0.0}
    return Sample(float(seconds), values | {Name(name): value for name, value in more.items()})


def begun(samples, jobid, user, begin):
    """A file that grows."""
    return Writer(folder_of(samples, jobid), Who("slurm", jobid, user, "n001", 5.0), begin)


def recorded(samples, jobid, user, times):
    """A file that has ended."""
    writer = begun(samples, jobid, user, times[0])
    for each in times:
        writer.write(at(each))
    writer.close()
    return writer.path


def with_samples(services, samples, streams=4):
    """The same services, reading samples."""
    options = SamplesOptions(str(samples), streams)
    return services._replace(
        settings=services.settings._replace(samples=options),
        streams=Streams(streams),
        histories=Histories([SampleHistory(samples)]),
    )
