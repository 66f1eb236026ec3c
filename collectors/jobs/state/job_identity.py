"""The identity of a job: the owner from the kernel, the rest from the owner's processes."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.view import JobName
from collectors.metric import Labels, labels

# A single value over a site's label_value_length_limit makes the whole scrape fail.
LONGEST_VALUE = 128

INFO_LABELS = (
    "uid", "account", "partition", "qos", "array_job_id", "array_task_id", "het_job_id", "sluid",
    "node", "cluster_name", "cgroup", "name",
)  # fmt: skip


class JobIdentity(NamedTuple):
    """A job's name and further labels; `info` are the labels of batchjob_job_info."""

    name: JobName
    uid: int | None
    info: Labels


def make(
    found: LayoutMatch,
    jobid: str,
    uid: int | None,
    user: str,
    details: Mapping[str, str],
    cgroup: str,
    job_name: bool,
) -> JobIdentity:
    """Build the identity and render its labels, once."""
    name = JobName(
        found.manager,
        jobid,
        user,
        labels(manager=found.manager, jobid=_cut(jobid), user=_cut(user)),
    )
    known = {"uid": "" if uid is None else str(uid), "cgroup": cgroup}
    known.update(details)
    known.update((key.replace("cluster", "cluster_name"), value) for key, value in found.info)
    if not job_name:
        known.pop("name", None)
    pairs = {key: _cut(known[key]) for key in INFO_LABELS if known.get(key)}
    return JobIdentity(name, uid, labels(**pairs))


def _cut(value: str) -> str:
    return value[:LONGEST_VALUE]
