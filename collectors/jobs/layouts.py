"""Where schedulers put the cgroups of their jobs: one row per scheduler and shape of tree.

A path is relative to where the hierarchy is mounted (v2: /sys/fs/cgroup; v1: the mount of a
controller). Each component is a regular expression of its own, and the last one is the job's
directory. Named groups are what a path tells:

    jobid    the id as the accounting writes it (after `decode`)
    alias    another name of the job, where only its processes know the id
    sluid    such an alias that Slurm made
    uid      the owner; a path that the scheduler makes as root is the kernel's word for it
    started  epoch seconds of the job's start
    others   go to `Found.info` under their own name

Facts: each scheduler's source or manual, named beside its rows; trees of Slurm and OpenPBS were
recorded from running ones.
"""

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from batchjob.schedulers.slurm import sluid
from collectors.metric import displayable

Role = Literal["job", "step", "scheduler", "user", "task"]

V1 = frozenset({1})
V2 = frozenset({2})
V1_AND_V2 = frozenset({1, 2})

RUNS_DIRECTORY = "batchjob.slice"
"""`batchjob run` makes its cgroups here: `<a cgroup it may use>/batchjob.slice/run-<uuid>`."""
RUN_PREFIX = "run-"


class Layout(NamedTuple):
    """One shape of tree."""

    name: str
    manager: str
    parents: tuple[re.Pattern[str], ...]  # the directories that lead to the job's
    job: re.Pattern[str]  # the job's own directory
    versions: frozenset[int] = V1_AND_V2
    anywhere: bool = False  # the path may begin in any directory, not only at the mount
    decode: Callable[[str], str] | None = None  # from the jobid in the path to the accounting's
    steps: re.Pattern[str] | None = None  # what a path below the job's directory means
    jobid_variable: str | None = None  # where a process of the job has the id, if the path has not
    nests: bool = False  # other jobs' trees may stand inside; then it is their host, no job
    enabled: bool = True
    by_user: bool = False  # the job's user makes the directory, so its owner is the job's

    @property
    def owner(self) -> Literal["path-uid", "directory", "process"]:
        """Where the owner's uid comes from."""
        if self.by_user:
            return "directory"
        named = any("uid" in part.groupindex for part in (*self.parents, self.job))
        return "path-uid" if named else "process"


class LayoutMatch(NamedTuple):
    """What the path of a job's directory says."""

    layout: Layout
    manager: str
    jobid: str  # where `jobid_variable` is set: an alias, until a process was asked
    uid: int | None = None
    started_at: float | None = None
    submitted_at: float | None = None
    sluid: str | None = None
    jobid_variable: str | None = None
    info: tuple[tuple[str, str], ...] = ()


class JobStep(NamedTuple):
    """What a directory of a job is for."""

    name: str | None  # 0, batch, extern, 0+1; None at the job itself or without steps
    role: Role  # `scheduler`: processes of slurmstepd and its like, not the user's
    task: str | None = None


def layout(
    name: str,
    manager: str,
    path: str,
    *,
    versions: frozenset[int] = V1_AND_V2,
    decode: Callable[[str], str] | None = None,
    steps: str | None = None,
    jobid_variable: str | None = None,
    nests: bool = False,
    enabled: bool = True,
    by_user: bool = False,
) -> Layout:
    """Make a row of a path; `**/` in front of it: it may begin anywhere."""
    anywhere = path.startswith("**/")
    *parents, job = (re.compile(part, re.ASCII) for part in path.removeprefix("**/").split("/"))
    return Layout(
        name,
        manager,
        tuple(parents),
        job,
        versions,
        anywhere,
        decode,
        None if steps is None else re.compile(steps, re.ASCII),
        jobid_variable,
        nests,
        enabled,
        by_user,
    )


def unescaped(text: str) -> str:
    r"""Undo systemd's escaping of unit names: `12\x5b3\x5d.srv` is `12[3].srv`."""
    return re.sub(r"(?:\\x[0-9a-f]{2})+", _bytes, text)


def _bytes(escapes: re.Match[str]) -> str:
    return bytes.fromhex(escapes[0].replace("\\x", "")).decode(errors="replace")


def _sge_id(text: str) -> str:
    job, task = text.split("-")
    return job if task == "0" else f"{job}.{task}"


def _pod_uid(text: str) -> str:
    return text.replace("_", "-")


_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_POD = r"pod(?P<jobid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"

# Slurm: src/plugins/cgroup/v1 and v2, doc/html/cgroups.shtml. The id is always the raw one; a
# task of an array and a part of a het job each have their own. `slurm_<node>`, `<node>_slurm...`:
# builds for several slurmd on a host, Debian's among them.
_SLURM_STEP = r"step_(?P<step>(?:\d+|batch|extern|interactive|TBD)(?:\+\d+)?)"
_SLURM_V1_STEPS = rf"{_SLURM_STEP}(?:/task_(?P<task>[^/]+)(?:/.*)?)?"
_SLURM_V2_STEPS = (
    rf"{_SLURM_STEP}(?:/(?P<scheduler>slurm)|/(?P<user>user)(?:/task_(?P<task>[^/]+))?(?:/.*)?)?"
)
_SLURM_SCOPE = r"(?:(?P<node>.+)_)?slurmstepd\.scope"
_SLURM_JOB = rf"job_(?P<jobid>\d+)|(?P<alias>(?P<sluid>{sluid.PATTERN}))"

# OpenPBS: src/hooks/cgroups/pbs_cgroups.PY at v18.1, v19.1, v20 to v23.06. A cgroup that the hook
# could not remove ends in `.orphan`.
_PBS_ID = r"\d+(?:\[\d+\])?(?:\.(?!orphan$)[\w-]+)*"
_PBS_ESCAPED_ID = r"\d+(?:\\x5b\d+\\x5d)?(?:\.(?!orphan\.slice$)(?:\w|\\x2d)+)*"

# HTCondor: src/condor_utils/proc_family_direct_cgroup_v*.cpp. `condor`, the EXECUTE directory with
# `_` for `/`, the slot's name. The job's id is not in it, so the slot stands for the job.
_CONDOR_JOB = r"condor_(?:.*?_(?=slot\d))?(?P<jobid>.+?)(?:\.slice)?"

LAYOUTS: tuple[Layout, ...] = (
    layout(
        "slurm-v1",
        "slurm",
        r"slurm(?:_(?P<node>.+))?/uid_(?P<uid>\d+)/job_(?P<jobid>\d+)",
        versions=V1,
        steps=_SLURM_V1_STEPS,
    ),
    # CgroupSlice= names the slice since 25.11, SLUIDs name the jobs since 26.05.
    layout(
        "slurm-v2",
        "slurm",
        rf".+\.slice/{_SLURM_SCOPE}/{_SLURM_JOB}",
        versions=V2,
        steps=_SLURM_V2_STEPS,
        jobid_variable="SLURM_JOB_ID",
    ),
    # IgnoreSystemd=yes, or slurmd in a container or pod: the scope stands wherever slurmd ran.
    layout(
        "slurm-v2-nested",
        "slurm",
        rf"**/{_SLURM_SCOPE}/{_SLURM_JOB}",
        versions=V2,
        steps=_SLURM_V2_STEPS,
        jobid_variable="SLURM_JOB_ID",
    ),
    # `cgroup_prefix` in the hook's configuration names the service.
    layout("pbs", "pbs", rf"(?P<prefix>.+)\.service/jobid/(?P<jobid>{_PBS_ID})", versions=V1),
    # On v2, in commercial PBS only, subjobs are 12345.2: their processes know the true id.
    layout(
        "pbs-v2",
        "pbs",
        rf"(?P<prefix>.+)\.service/(?:jobs|jobid)/(?P<alias>{_PBS_ID})",
        versions=V2,
        jobid_variable="PBS_JOBID",
    ),
    layout(
        "pbs-19-systemd",
        "pbs",
        rf"pbspro\.slice/pbspro-(?P<jobid>{_PBS_ESCAPED_ID})\.slice",
        versions=V1,
        decode=unescaped,
    ),
    layout("pbs-18", "pbs", rf"pbspro/(?P<jobid>{_PBS_ID})", versions=V1),
    # Torque: src/resmom/trq_cgroups.c; R<request>.t<task> with `qsub -L`.
    layout(
        "torque",
        "torque",
        r"torque/(?P<jobid>\d+(?:\[\d+\])?\.[\w.-]+)",
        versions=V1,
        steps=r"(?P<step>R\d+\.t\d+)",
    ),
    # LSF: IBM support pages on cgroups; the third number is like a pid, the last one the start.
    layout(
        "lsf",
        "lsf",
        r"lsf/(?P<cluster>.+)/job\.(?P<jobid>\d+(?:\[(?P<array_index>\d+)\])?)"
        r"\.(?P<serial>\d+)\.(?P<started>\d+)",
        steps=r"(?P<user>leaf)(?:/.*)?|(?P<scheduler>job-mps-service)",
    ),
    # Flux: src/modules/sdexec; units of the flux user's own systemd. The uid in the path is his.
    *(
        layout(
            f"flux{suffix}",
            "flux",
            rf"user\.slice/user-\d+\.slice/user@\d+\.service/{between}"
            r"(?:imp-)?shell-(?P<rank>\d+)-(?P<jobid>f[1-9A-HJ-NP-Za-km-z]+)\.service",
            versions=V2,
        )
        for suffix, between in (("", ""), ("-app", r"app\.slice/"))
    ),
    layout("htcondor-v1", "htcondor", rf"htcondor/{_CONDOR_JOB}", versions=V1),
    layout(
        "htcondor-v2",
        "htcondor",
        rf"system\.slice/condor.*\.service/htcondor/{_CONDOR_JOB}",
        versions=V2,
    ),
    # OAR: sources/core/tools/job_resource_manager_{cgroups,systemd}.pl; a login may hold `_`.
    layout("oar-v1", "oar", r"oar/(?P<login>.+)_(?P<jobid>\d+)", versions=V1),
    layout(
        "oar-v2",
        "oar",
        r"oar\.slice/oar-u\d+\.slice/oar-u(?P<uid>\d+)-j(?P<jobid>\d+)\.slice",
        versions=V2,
    ),
    # Grid Engine with the community's wrapper of the shepherd; task 0 is a job that is no array.
    layout(
        "sge",
        "sge",
        r"sge\.slice/sge-shepherd\.slice/sge-shepherd-\d+\.slice/"
        r"sge-shepherd-(?P<jobid>\d+-\d+)\.slice",
        decode=_sge_id,
    ),
    # Joblet: a short number or a UUID; older versions without the service.
    *(
        layout(name, "joblet", rf"joblet\.slice/{between}job-(?P<jobid>[\w-]+)", versions=V2)
        for name, between in (("joblet", r"joblet\.service/"), ("joblet-old", ""))
    ),
    # Kubernetes: pkg/kubelet/cm; the cgroupfs driver's names, then the systemd driver's. A pod of
    # quality "guaranteed" has no level of its own. Slurm's nodes may be pods.
    *(
        layout(name, "kubernetes", path, decode=_pod_uid, nests=True)
        for name, path in (
            ("kubernetes", rf"kubepods/{_POD}"),
            ("kubernetes-qos", rf"kubepods/(?P<qos>burstable|besteffort)/{_POD}"),
            ("kubernetes-systemd", rf"kubepods\.slice/kubepods-{_POD}\.slice"),
            (
                "kubernetes-systemd-qos",
                r"kubepods\.slice/kubepods-(?P<qos>burstable|besteffort)\.slice/"
                rf"kubepods-(?:burstable|besteffort)-{_POD}\.slice",
            ),
        )
    ),
    # libvirt: a virtual machine is no batch job, unless the site says so.
    layout(
        "libvirt-systemd",
        "libvirt",
        r"machine\.slice/machine-qemu\\x2d\d+\\x2d(?P<jobid>.+)\.scope",
        decode=unescaped,
        nests=True,
        enabled=False,
    ),
    layout(
        "libvirt",
        "libvirt",
        r"machine/qemu-\d+-(?P<jobid>.+)\.libvirt-qemu",
        nests=True,
        enabled=False,
    ),
    # Our own: `batchjob run` as root or in a cgroup that was handed to it, and as a user with
    # a systemd of his own (`user@<uid>.service` is made by root, so its uid is true).
    layout(
        "local",
        "local",
        rf"{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?",
        by_user=True,
    ),
    # A cgroup that was handed to somebody else lies elsewhere in the tree.
    layout(
        "local-nested",
        "local",
        rf"**/{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?",
        versions=V2,
        by_user=True,
    ),
    layout(
        "local-user",
        "local",
        r"user\.slice/user-\d+\.slice/user@(?P<uid>\d+)\.service/"
        rf"{re.escape(RUNS_DIRECTORY)}/{RUN_PREFIX}(?P<jobid>{_UUID})(?:\.scope)?",
        versions=V2,
    ),
)


def found(row: Layout, groups: Mapping[str, str]) -> LayoutMatch:
    """What the named groups of a matched path say."""
    groups = {name: displayable(value) for name, value in groups.items()}
    text = groups["jobid"] if "jobid" in groups else groups["alias"]
    started = groups.get("started")
    return LayoutMatch(
        row,
        row.manager,
        row.decode(text) if row.decode else text,
        uid=int(groups["uid"]) if "uid" in groups else None,
        started_at=float(started) if started else None,
        submitted_at=_submitted_at(groups["sluid"]) if "sluid" in groups else None,
        sluid=groups.get("sluid"),
        jobid_variable=None if "jobid" in groups else row.jobid_variable,
        info=tuple((name, text) for name, text in groups.items() if name not in _FIELDS),
    )


_FIELDS = frozenset({"jobid", "alias", "sluid", "uid", "started"})


def _submitted_at(text: str) -> float | None:
    try:
        return sluid.decode(text).submitted_at
    except ValueError:
        return None  # the right shape, but more than 64 bits


def step_of(job: LayoutMatch, below: str) -> JobStep | None:
    """What a directory `below` the job's own (a relative path, "" the job's) is for.

    None: the scheduler has no steps, or the job made the directory itself.
    """
    if not below:
        return JobStep(None, "job")
    pattern = job.layout.steps
    matched = pattern.fullmatch(below) if pattern else None
    if matched is None:
        return None
    groups = {name: text for name, text in matched.groupdict().items() if text is not None}
    role: Role = next((role for role in _ROLES if role in groups), "step")
    return JobStep(groups.get("step"), role, groups.get("task"))


_ROLES: tuple[Role, ...] = ("scheduler", "task", "user")  # the innermost first
