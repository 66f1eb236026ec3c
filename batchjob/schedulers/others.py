"""Further job managers on compute nodes; their job records come as JSON lines.

Flux, HTCondor, OAR, Grid Engine, Joblet and Kubernetes.
"""

import re

from batchjob.schedulers.layout import V1, V2, layout
from batchjob.schedulers.node import JobManager


def _decode_sge_id(text: str) -> str:
    job, task = text.split("-")
    return job if task == "0" else f"{job}.{task}"


_POD = r"pod(?P<jobid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"

# HTCondor: src/condor_utils/proc_family_direct_cgroup_v*.cpp. The name consists of `condor`, the
# EXECUTE directory with `_` for `/`, and the slot's name, which stands for the job's missing id.
_CONDOR_JOB = r"condor_(?:.*?_(?=slot\d))?(?P<jobid>.+?)(?:\.slice)?"

# fmt: off
_FLUX = tuple(
    # Flux: src/modules/sdexec. The units belong to the flux user's systemd instance, and the uid in
    # the path is that user's.
    layout(f"flux{suffix}", "flux",
        rf"**/user\.slice/user-\d+\.slice/user@\d+\.service/{between}"
        r"(?:imp-)?shell-(?P<rank>\d+)-(?P<jobid>f[1-9A-HJ-NP-Za-km-z]+)\.service", versions=V2)
    for suffix, between in (("", ""), ("-app", r"app\.slice/"))
)
_HTCONDOR = (
    layout("htcondor-v1", "htcondor", rf"**/htcondor/{_CONDOR_JOB}", versions=V1),
    layout("htcondor-v2", "htcondor", rf"**/condor.*\.service/htcondor/{_CONDOR_JOB}", versions=V2),
)
_OAR = (
    # OAR: sources/core/tools/job_resource_manager_{cgroups,systemd}.pl; a login may contain `_`.
    layout("oar-v1", "oar", r"**/oar/(?P<login>.+)_(?P<jobid>\d+)", versions=V1),
    layout("oar-v2", "oar",
        r"**/oar\.slice/oar-u\d+\.slice/oar-u(?P<uid>\d+)-j(?P<jobid>\d+)\.slice", versions=V2),
)
_GRID_ENGINE = (
    # Grid Engine with the community's wrapper of the shepherd. Task 0: the job is not an array.
    layout("sge", "sge",
        r"**/sge\.slice/sge-shepherd\.slice/sge-shepherd-\d+\.slice/"
        r"sge-shepherd-(?P<jobid>\d+-\d+)\.slice", decode_jobid=_decode_sge_id),
)
_JOBLET = tuple(
    # Joblet: the id is a short number or a UUID. Older versions lack the service.
    layout(name, "joblet", rf"**/joblet\.slice/{between}job-(?P<jobid>[\w-]+)", versions=V2)
    for name, between in (("joblet", r"joblet\.service/"), ("joblet-old", ""))
)
_KUBERNETES = tuple(
    # Kubernetes: pkg/kubelet/cm. The names of the cgroupfs driver come first, then those of the
    # systemd driver, which begin with the kubelet's own root (--cgroup-root) and, where only the
    # kubelet uses that driver, end in the container. There is no level for the QoS class
    # "Guaranteed". Nodes of Slurm may run in pods.
    layout(f"kubernetes{suffix}", "kubernetes", f"**/{path}", can_contain_jobs=True,
        decode_jobid=lambda uid: uid.replace("_", "-"))
    for suffix, path in (
        ("", f"kubepods/{_POD}"),
        ("-qos", f"kubepods/(?P<qos>burstable|besteffort)/{_POD}"),
        ("-systemd", rf"(?:.+-)?kubepods-{_POD}\.slice(?::.+)?"),
        ("-systemd-qos",
            rf"(?:.+-)?kubepods-(?P<qos>burstable|besteffort)-{_POD}\.slice(?::.+)?"),
    )
)

JOB_MANAGERS = (
    JobManager("flux", _FLUX, variables={"name": "FLUX_JOB_NAME"},
        launchers=frozenset({"flux-imp"}), daemons=frozenset({"flux-broker-0", "flux-broker"}),
        advice="let Flux run jobs by sdexec; see docs/schedulers/others.md"),
    JobManager("htcondor", _HTCONDOR, re.compile("htcondor"),
        launchers=frozenset({"condor_starter"}),
        daemons=frozenset({"condor_startd", "condor_master"}),
        advice="set BASE_CGROUP = htcondor; see docs/schedulers/others.md"),
    JobManager("oar", _OAR, re.compile(r"oar(\.slice)?"),
        variables={"account": "OAR_PROJECT_NAME", "name": "OAR_JOB_NAME"}, may_be_empty=True,
        advice="see docs/schedulers/others.md"),
    JobManager("sge", _GRID_ENGINE, re.compile(r"sge\.slice"),
        variables={"partition": "QUEUE", "name": "JOB_NAME"}, launchers=frozenset({"sge_shepherd"}),
        daemons=frozenset({"sge_execd"}),
        advice="start jobs through a shepherd that makes cgroups; see docs/schedulers/others.md"),
    JobManager("joblet", _JOBLET, re.compile(r"joblet\.slice"), daemons=frozenset({"joblet"}),
        advice="see docs/schedulers/others.md"),
    JobManager("kubernetes", _KUBERNETES, re.compile(r"kubepods(\.slice)?"),
        daemons=frozenset({"kubelet"}), advice="see docs/schedulers/others.md"),
)
# fmt: on
