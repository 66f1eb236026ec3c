"""Recorded PBS accounting and a reader of it, for the tests of PBS sources."""

import lzma
from datetime import UTC, datetime
from pathlib import Path

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.records import merge_records

RECORDINGS = Path(__file__).parents[3] / "fixtures" / "accounting"
LOG = lzma.decompress((RECORDINGS / "openpbs-23.06.06.accounting.xz").read_bytes())
QSTAT = lzma.decompress((RECORDINGS / "openpbs-23.06.06.qstat.json.xz").read_bytes())
EDGES = lzma.decompress((RECORDINGS / "openpbs-2026-edges" / "accounting.xz").read_bytes())
END_HEAD = "04/04/2026 13:06:40;E;101.srv;user=alice group=phys"
END_TAIL = "ctime=1775296800 start=1775296900 end=1775300800 Exit_status=0"


def read_all(source, watermark='{"since": 0}', unfinished=None):
    """Read the source as a poller would: records by id and run, watermark, quarantine."""
    known = dict(unfinished or {})
    jobs, quarantined = {}, []
    for batch in source.read(watermark, known):
        watermark = batch.watermark
        quarantined += batch.quarantined
        for job in batch.jobs:
            earlier = jobs.get((job.jobid, job.run))
            jobs[job.jobid, job.run] = job if earlier is None else merge_records(earlier, job)
    return jobs, watermark, quarantined


def unfinished_jobs(jobs):
    """What the database says of unfinished jobs, from records by id and run."""
    return {
        job.jobid: UnfinishedJob(*(getattr(job, name) for name in UnfinishedJob._fields))
        for _, job in sorted(jobs.items())
        if job.state.is_live and job.end_time is None
    }


def log_line(seconds, kind, job, attributes=""):
    """A line of the accounting log, stamped in UTC."""
    at = datetime.fromtimestamp(seconds, UTC).strftime("%m/%d/%Y %H:%M:%S")
    return f"{at};{kind};{job};{attributes}\n"
