"""What LSF's resizable jobs held before their last allocation: JOB_RESIZE records of lsb.acct(5).

A record states the allocation before a change, and since when the job had it. The job's JOB_FINISH
has the last one, so that the phases between are remembered until then.
"""

from collections.abc import Mapping, Sequence

from batchjob.schedulers.fields import HostListError, RowError
from batchjob.schedulers.lsf.accounting.lsb_line import Word
from batchjob.schedulers.lsf.accounting.records import format_job_id
from batchjob.schedulers.lsf.formats import lsf_hosts
from batchjob.schedulers.records import JobRecord

RECORD_TYPE = "JOB_RESIZE"
_HOSTS_AT = 11  # after type, version, time, id, index, start, uid, user, kind, last change, number
_MAX_JOBS = 10_000  # maximum number of jobs to remember

Phases = dict[str, tuple[float, float]]
"""By job id, the CPU seconds and the seconds of the phases that have ended."""


def add_phase(phases: Phases, line: Sequence[Word]) -> None:
    """Add the phase that a JOB_RESIZE ends; raises RowError."""
    texts = [word.text for word in line]
    try:
        end, number, index = int(texts[2]), texts[3], int(texts[4])
        start, slots = int(texts[9]), int(texts[10])
        hosts = lsf_hosts(texts[_HOSTS_AT : _HOSTS_AT + slots])
    except (ValueError, IndexError, HostListError) as error:
        raise RowError(f"not a record of a resized job: {error}") from error
    jobid = format_job_id(number, index)
    seconds = max(0, end - start)
    cpus = sum(share.cpus or 0 for share in hosts.values())
    before = phases.pop(jobid, (0, 0))
    phases[jobid] = (before[0] + cpus * seconds, before[1] + seconds)
    if len(phases) > _MAX_JOBS:
        del phases[next(iter(phases))]


def with_phases(job: JobRecord, phases: Phases) -> JobRecord:
    """The ended job with what its earlier phases held beyond its last allocation."""
    found = phases.pop(job.jobid, None)
    if found is None or job.allocated_cpus is None:
        return job
    cpu_seconds, seconds = found
    return job._replace(resized_cpu_seconds=cpu_seconds - job.allocated_cpus * seconds)


def parse_phases(state: Mapping[str, object]) -> Phases:
    """The phases in a watermark."""
    found = state.get("phases")
    if not isinstance(found, dict):
        return {}
    return {str(jobid): (float(both[0]), float(both[1])) for jobid, both in found.items()}
