"""Cgroup paths of schedulers, and the jobs and steps they name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers import registry
from batchjob.schedulers.layout import unescape_unit_name
from collectors.jobs.discovery.walk import match

BUILT_IN = registry.layouts()

POD = "0a1b2c3d-0000-4111-8222-0a1b2c3d4e5f"
POD_NAME = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
POD_SLICE = f"kubepods.slice/kubepods-burstable.slice/{POD_NAME}"
RUN = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

# version, path, manager, jobid, uid
JOBS = [
    (1, "slurm/uid_1000/job_42", "slurm", "42", 1000),
    (1, "slurm_node001/uid_20001/job_11", "slurm", "11", 20001),
    (1, "slurm_gpu-7_a/uid_20001/job_11", "slurm", "11", 20001),
    (2, "system.slice/slurmstepd.scope/job_4749", "slurm", "4749", None),
    (2, "system.slice/slurm-worker-1_slurmstepd.scope/job_4749", "slurm", "4749", None),
    (2, "hpc.slice/slurmstepd.scope/job_1", "slurm", "1", None),
    (2, "hpc.slice/hpc-batch.slice/slurmstepd.scope/job_1", "slurm", "1", None),
    (2, "slurmstepd.scope/job_1", "slurm", "1", None),
    (
        2,
        f"{POD_SLICE}/cri-containerd-1f.scope/system.slice/slurmstepd.scope/job_9",
        "slurm",
        "9",
        None,
    ),
    (2, "system.slice/slurmstepd.scope/s5K1KKYAYG5D00", "slurm", "s5K1KKYAYG5D00", None),
    (2, "a/b/c/d/e/f/g/h/i/slurmstepd.scope/job_1", "slurm", "1", None),
    (1, f"docker/{64 * 'a'}/slurm/uid_1001/job_42", "slurm", "42", 1001),
    (1, f"kubepods/burstable/pod{POD}/{64 * 'b'}/slurm_w0/uid_3/job_44", "slurm", "44", 3),
    (1, "pbsn2/pbs_jobs.service/jobid/73.pbs01", "pbs", "73.pbs01", None),
    (1, f"docker/{64 * 'a'}/torque/7.head", "torque", "7.head", None),
    (1, f"docker/{64 * 'a'}/lsf/prod/job.9.30675.1775295256", "lsf", "9", None),
    (1, "pbs_jobs.service/jobid/2404743.opbs", "pbs", "2404743.opbs", None),
    (1, "pbs_jobs.service/jobid/2[1].pbs01", "pbs", "2[1].pbs01", None),
    (1, "site.service/jobid/7.pbs-1.example.org", "pbs", "7.pbs-1.example.org", None),
    (2, "pbs_jobs.service/jobs/12345.2", "pbs", "12345.2", None),
    (1, r"pbspro.slice/pbspro-12\x5b3\x5d.pbs\x2dsrv.slice", "pbs", "12[3].pbs-srv", None),
    (1, "pbspro/1234.server", "pbs", "1234.server", None),
    (1, "torque/1182724.batch", "torque", "1182724.batch", None),
    (1, "lsf/cluster_name/job.42.34071.1775289779", "lsf", "42", None),
    (1, "lsf/cluster_name/job.42[2].34071.1775289779", "lsf", "42[2]", None),
    (2, "lsf/cluster1/job.9.30675.1775295256", "lsf", "9", None),
    (
        2,
        "user.slice/user-64055.slice/user@64055.service/imp-shell-0-fTE9HHdZvi3.service",
        "flux",
        "fTE9HHdZvi3",
        None,
    ),
    (
        2,
        "user.slice/user-64055.slice/user@64055.service/app.slice/shell-3-fTE9HHdZvi3.service",
        "flux",
        "fTE9HHdZvi3",
        None,
    ),
    (1, "htcondor/condor_var_lib_condor_execute_slot1_1@host", "htcondor", "slot1_1@host", None),
    (
        2,
        "system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1@h.slice",
        "htcondor",
        "slot1@h",
        None,
    ),
    (1, "oar/jean_paul_1234", "oar", "1234", None),
    (2, "oar.slice/oar-u1001.slice/oar-u1001-j77.slice", "oar", "77", 1001),
    (
        2,
        "sge.slice/sge-shepherd.slice/sge-shepherd-396548.slice/sge-shepherd-396548-0.slice",
        "sge",
        "396548",
        None,
    ),
    (
        1,
        "sge.slice/sge-shepherd.slice/sge-shepherd-9.slice/sge-shepherd-9-12.slice",
        "sge",
        "9.12",
        None,
    ),
    (2, "joblet.slice/joblet.service/job-17", "joblet", "17", None),
    (2, f"joblet.slice/job-{RUN}", "joblet", RUN, None),
    (2, POD_SLICE, "kubernetes", POD, None),
    (1, f"kubepods/besteffort/pod{POD}", "kubernetes", POD, None),
    (1, f"kubepods/pod{POD}", "kubernetes", POD, None),
    (2, f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice", "kubernetes", POD, None),
    (2, f"kubelet/kubepods/burstable/pod{POD}", "kubernetes", POD, None),
    (2, f"kubelet.slice/kubelet-kubepods.slice/kubelet-{POD_NAME}", "kubernetes", POD, None),
    (
        2,
        f"system.slice/containerd.service/{POD_NAME}:cri-containerd:{64 * 'c'}",
        "kubernetes",
        POD,
        None,
    ),
    (2, "kubepods/pod" + 32 * "a", "kubernetes", 32 * "a", None),
    (1, f"batchjob.slice/run-{RUN}", "local", RUN, None),
    (2, f"batchjob.slice/run-{RUN}.scope", "local", RUN, None),
    (2, f"system.slice/docker-1f.scope/batchjob.slice/run-{RUN}", "local", RUN, None),
    (
        2,
        f"user.slice/user-1000.slice/user@1000.service/batchjob.slice/run-{RUN}.scope",
        "local",
        RUN,
        1000,
    ),
]

NO_JOBS = [
    (1, ""),
    (1, "slurm/system"),
    (1, "slurm/uid_1000"),
    (1, "slurm/uid_1000/job_42/step_0"),
    (1, "slurm/uid_1000/job_²"),
    (1, "system.slice/slurmd.service"),
    (1, "system.slice/slurmstepd.scope/job_1"),  # version 2's tree
    (2, "slurm/uid_1000/job_42"),  # version 1's
    (2, "system.slice/slurmstepd.scope/system"),
    (2, "system.slice/slurmstepd.scope/slurmd"),
    (2, "system.slice/slurmstepd.scope/s5K1KKYAYG5DIL"),
    (2, "system.slice/slurmd.service/slurmd"),
    (2, "system.slice/slurmstepd.scope/job_1/step_0/user/task_0/slurmstepd.scope/job_2"),
    (2, "user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_123"),
    (1, "pbs_jobs.service/jobid/1234.server.orphan"),
    (1, "pbs_jobs.service/jobid"),
    (2, "system.slice/other.service/jobs/7"),  # ids of PBS have the server's name
    (1, "pbspro/1234.server.orphan"),
    (1, "pbspro.slice/pbspro-1234.server.orphan.slice"),
    (1, "lsf/cluster1/job-mps-service"),
    (2, "user.slice/user-1000.slice/session-2.scope"),
    (2, "kubepods.slice/kubepods-burstable.slice"),
    (1, r"machine.slice/machine-qemu\x2d1\x2dinstance.scope"),  # unless enabled
]


@pytest.mark.parametrize(("version", "path", "manager", "jobid", "uid"), JOBS)
def test_path_is_a_job(version, path, manager, jobid, uid):
    job = match(path, BUILT_IN, version)
    assert job is not None
    assert (job.manager, job.jobid, job.uid) == (manager, jobid, uid)


@pytest.mark.parametrize(("version", "path"), NO_JOBS)
def test_path_is_not_a_job(version, path):
    assert match(path, BUILT_IN, version) is None


def test_every_enabled_layout_has_an_example():
    matched_layouts = {
        job.layout.name for version, path, *_ in JOBS if (job := match(path, BUILT_IN, version))
    }
    assert {row.name for row in BUILT_IN if row.enabled} - matched_layouts == set()


def test_lsf_path_has_start_time_and_array_index():
    job = match("lsf/prod/job.42[2].34071.1775289779", BUILT_IN, 1)
    assert job is not None
    assert job.started_at == 1775289779
    assert dict(job.info) == {"cluster": "prod", "array_index": "2", "serial": "34071"}


def test_sluid_is_an_alias_of_the_job():
    job = match("system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500", BUILT_IN, 2)
    assert job is not None
    assert job.jobid_variable == "SLURM_JOB_ID"
    assert dict(job.info) == {"node": "n1", "sluid": "sEKNKTV3WPV500"}


def test_job_number_in_the_path_needs_no_variable():
    job = match("system.slice/slurmstepd.scope/job_19", BUILT_IN, 2)
    assert job is not None
    assert job.jobid_variable is None


@pytest.mark.parametrize(
    ("path", "subdirectory", "is_schedulers"),
    [
        ("system.slice/slurmstepd.scope/job_1", "", False),
        ("system.slice/slurmstepd.scope/job_1", "step_0", False),
        ("system.slice/slurmstepd.scope/job_1", "step_batch/slurm", True),
        ("system.slice/slurmstepd.scope/job_1", "step_0+1/user", False),
        ("system.slice/slurmstepd.scope/job_1", "step_extern/user/task_special", True),
        ("system.slice/slurmstepd.scope/job_1", "step_3/user/task_1/docker/slurm", False),
        ("system.slice/slurmstepd.scope/job_1", "own", False),
        ("slurm/uid_1/job_1", "step_extern", True),
        ("slurm/uid_1/job_1", "step_0/task_0", False),
        ("lsf/c/job.1.2.3", "leaf", False),
        ("lsf/c/job.1.2.3", "job-mps-service", True),
    ],
)
def test_directories_of_the_scheduler_in_a_job(path, subdirectory, is_schedulers):
    job = match(path, BUILT_IN, 2 if "scope" in path else 1)
    assert job is not None
    assert job.layout.scheduler_paths is not None
    assert bool(job.layout.scheduler_paths.fullmatch(subdirectory)) == is_schedulers


NAMES = st.text(
    st.characters(blacklist_characters="/\0\n", blacklist_categories=["Cs"]),
    min_size=1,
    max_size=60,
)
KNOWN_NAMES = st.sampled_from(sorted({n for _, path, *_ in JOBS for n in path.split("/")}))


@given(st.lists(NAMES | KNOWN_NAMES, max_size=10), st.sampled_from([1, 2]))
def test_arbitrary_path_is_a_valid_job_or_none(names, version):
    job = match("/".join(names), BUILT_IN, version)
    if job is not None:
        assert job.jobid
        assert job.layout.manager == job.manager


@given(st.integers(0, 2**32), st.integers(0, 2**32 - 2), NAMES)
def test_slurm_ids_are_parsed_from_generated_paths(jobid, uid, node):
    one = match(f"slurm_{node}/uid_{uid}/job_{jobid}", BUILT_IN, 1)
    two = match(f"system.slice/{node}_slurmstepd.scope/job_{jobid}", BUILT_IN, 2)
    assert one is not None
    assert two is not None
    assert (one.jobid, one.uid, dict(one.info)["node"]) == (str(jobid), uid, node)
    assert (two.jobid, dict(two.info)["node"]) == (str(jobid), node)


@given(
    st.integers(0, 10**9),
    st.none() | st.integers(0, 10**6),
    st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True),
)
def test_pbs_ids_are_unescaped_from_systemd_units(number, index, server):
    jobid = f"{number}{'' if index is None else f'[{index}]'}.{server}"
    escaped = "".join(c if c.isalnum() or c in "_." else f"\\x{ord(c):02x}" for c in jobid)
    job = match(f"pbspro.slice/pbspro-{escaped}.slice", BUILT_IN, 1)
    assert job is not None or server == "orphan"
    assert job is None or job.jobid == jobid


@given(st.text())
def test_unescaping_never_fails(text):
    unescape_unit_name(text)
    unescape_unit_name("\\x" + text)


def test_unescaping_decodes_multibyte_characters():
    assert unescape_unit_name(r"a\xc3\xa4\x2db\x") == "aä-b\\x"
