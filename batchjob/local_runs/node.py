"""What a local run leaves on its machine: the cgroup that `batchjob run` makes for it."""

import re

from batchjob.schedulers.layout import V2, layout
from batchjob.schedulers.node import JobManager

RUNS_DIRECTORY = "batchjob.slice"
"""`batchjob run` makes its cgroups here: `<a cgroup it may use>/batchjob.slice/run-<uuid>`."""
RUN_PREFIX = "run-"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# fmt: off
_LAYOUTS = (
    # `batchjob run` as root or in a delegated cgroup, and as a user with a user instance of
    # systemd. (`user@<uid>.service` is created by root, so its uid can be trusted.)
    layout("local", "local",
        rf"{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?",
        created_by_user=True),
    # A cgroup delegated to another user is elsewhere in the tree.
    layout("local-nested", "local",
        rf"**/{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?", versions=V2,
        created_by_user=True),
    layout("local-user", "local", r"user\.slice/user-\d+\.slice/user@(?P<uid>\d+)\.service/"
        rf"{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?", versions=V2),
)
# fmt: on
LAYOUT = _LAYOUTS[0]

# fmt: off
JOB_MANAGERS = (
    JobManager("local", _LAYOUTS, re.compile(r"batchjob\.slice"),
        variables={"name": "BATCHJOB_NAME"}),
)
# fmt: on
