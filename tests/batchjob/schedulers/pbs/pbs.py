"""Recorded PBS accounting and a reader of it, for the tests of PBS sources."""

import lzma
from datetime import UTC, datetime
from pathlib import Path

RECORDINGS = Path(__file__).parents[3] / "fixtures" / "accounting"
LOG = lzma.decompress((RECORDINGS / "openpbs-23.06.06.accounting.xz").read_bytes())
QSTAT = lzma.decompress((RECORDINGS / "openpbs-23.06.06.qstat.json.xz").read_bytes())
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
            jobs[job.jobid, job.run] = (
                job
                if earlier is None
                else type(job)._make(
                    old if new in (None, "", ()) else new
                    for old, new in zip(earlier, job, strict=True)
                )
            )
    return jobs, watermark, quarantined


def log_line(seconds, kind, job, attributes=""):
    """A line of the accounting log, stamped in UTC."""
    at = datetime.fromtimestamp(seconds, UTC).strftime("%m/%d/%Y %H:%M:%S")
    return f"{at};{kind};{job};{attributes}\n"
