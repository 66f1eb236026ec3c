"""The identity of a job: the owner from the kernel, the rest from the owner's processes."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.schedulers.layout import LayoutMatch
from collectors.jobs.view import JobName
from collectors.metric import Labels, labels

# A single value over a site's label_value_length_limit makes the whole scrape fail.
MAX_LABEL_LENGTH = 128

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
    layout_match: LayoutMatch,
    jobid: str,
    uid: int | None,
    user: str,
    details: Mapping[str, str],
    cgroup: str,
    job_name: bool,
) -> JobIdentity:
    """Build the identity and render its labels, once."""
    name = JobName(
        layout_match.manager,
        jobid,
        user,
        labels(manager=layout_match.manager, jobid=_truncate(jobid), user=_truncate(user)),
    )
    values = {"uid": "" if uid is None else str(uid), "cgroup": cgroup}
    values.update(details)
    values.update(
        (key.replace("cluster", "cluster_name"), value) for key, value in layout_match.info
    )
    if not job_name:
        values.pop("name", None)
    pairs = {key: _truncate(values[key]) for key in INFO_LABELS if values.get(key)}
    return JobIdentity(name, uid, labels(**pairs))


def _truncate(value: str) -> str:
    return value[:MAX_LABEL_LENGTH]
