"""Three jobs of a real Slurm and the simulated GPUs of its node: one leaves its GPU idle.

Another keeps its own busy, and a third names the first GPU in its environment.
"""

import re
from collections.abc import Mapping

from tests.e2e import slurm
from tests.fake_nvml.library import GPU, RunningGpus
from tests.helpers.waiting import until

IDLE, WORKING, FORGING = "carol", "erin", "dave"
MORE_USERS = [WORKING]  # that a cluster does not have by itself
ANOTHERS_GPU = GPU["uuid"].format(n=0)
FORGED = f"export CUDA_VISIBLE_DEVICES={ANOTHERS_GPU} SLURM_JOB_GPUS=0 SLURM_STEP_GPUS=0"
INFO = "batchjob_job_gpu_info"
OBSERVED = "batchjob_job_free_gpu_observed_seconds_total"


def submit(cluster: slurm.Cluster, gpus: RunningGpus) -> dict[str, str]:
    """Ids of the jobs by user, once they run and one GPU works."""
    wait, an_hour = "sleep 3600", "--time=60"
    jobs = {
        IDLE: cluster.submit(IDLE, wait, an_hour, "--gres=gpu:1", "--job-name=idle"),
        WORKING: cluster.submit(WORKING, wait, an_hour, "--gres=gpu:1"),
        FORGING: cluster.submit(FORGING, f"{FORGED}\n{wait}", an_hour),
    }
    cluster.wait(*jobs.values(), state="RUNNING")
    (number,) = allocated(cluster, jobs)[WORKING]
    pid = until(lambda: cluster.sleeping(jobs[WORKING]), "a process of the job", 60)
    gpus.work(number, 80, pid)
    return jobs


def allocated(cluster: slurm.Cluster, jobs: Mapping[str, str]) -> dict[str, list[int]]:
    """Numbers of the GPUs that Slurm has given to each user's job."""
    told = {job: cluster.command("scontrol", "-d", "show", "job", job) for job in jobs.values()}
    return {
        user: [int(number) for number in re.findall(r"GRES=gpu:1\(IDX:(\d)\)", told[job])]
        for user, job in jobs.items()
    }
