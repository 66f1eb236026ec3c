"""A scrape passes through few files and functions, so that a reader can follow it.

The counts are upper bounds, without HTTP; lower them when they fall.
"""

from batchjob_exporter import exposition
from batchjob_exporter.exporter import Exporter
from tests.helpers.crossed import Crossed, Recorder

MOST = Crossed(21, 70)


def test_a_scrape_of_one_job_passes_through_few_files_and_functions(node):
    job = node.add_job(pids=[10])
    jobs = node.collector()
    jobs.update()
    exporter = Exporter({"jobs": jobs})
    exposition.render(exporter.collect())  # what is done once is not counted
    node.set_cpu(job, (2_000_000, 1_000_000))
    recorder = Recorder()
    with recorder.installed(), recorder.recording():
        jobs.update()  # the work of its threads
        exposition.render(exporter.collect())
    crossed = recorder.crossed()
    assert crossed.files <= MOST.files
    assert crossed.functions <= MOST.functions
