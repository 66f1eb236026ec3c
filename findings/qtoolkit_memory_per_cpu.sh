#!/bin/bash
# How much memory per CPU does QToolKit report for a job of 4 CPUs and 8 GiB?
#
# Guess, written before the run: `memory_per_cpu` is 2 GiB, and `memory` 8 GiB, for Slurm and PBS alike.
#
# Seen: `memory_per_cpu` is the whole amount whatever the scheduler means by it: Slurm's MIN_MEMORY, which is per node
# for a job submitted with --mem, and PBS' Resource_List.mem, which is that of the job. `memory` is None. From
# `scontrol show job`, the same job has no memory at all, since only MinMemoryCPU is read; and a job submitted with
# --mem-per-cpu=2G has its 2 GiB there as `memory`, that of the job.
#
# qtoolkit 0.1.7; squeue(1) "%m" and scontrol(1) of Slurm 22.05; PBS Professional Reference Guide, "mem".
#
# Needs python3 and a package index. Ends with 0 while the behaviour is as seen, with 1 when it has changed.
set -euo pipefail

top=$(mktemp -d /tmp/finding.XXXXXX)
trap 'rm -rf "$top"' EXIT
cd "$top"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check qtoolkit==0.1.7 2>/dev/null

venv/bin/python - <<'EOF' >seen
from qtoolkit.io import PBSIO, SlurmIO

slurm, pbs = SlurmIO(), PBSIO()
kib = 1024**2
values = {
    "job_id": "7", "state_raw": "R", "username": "ada", "number_nodes": "1", "number_cpus": "4", "min_memory": "8G",
    "partition": "main", "time_limit": "1:00:00", "time_used": "0:10", "job_name": "work",
}
row = f"{slurm.split_separator} ".join(values.get(name, "") for _, name in slurm.squeue_fields)
queue = """Job Id: 7.pbs
    Job_Name = work
    Job_Owner = ada@login
    job_state = R
    queue = main
    Resource_List.mem = 8gb
    Resource_List.ncpus = 4
    Resource_List.nodect = 1
    Resource_List.walltime = 01:00:00
"""
control = ("JobId=7 JobName=work UserId=ada(1000) JobState=RUNNING Partition=main TimeLimit=01:00:00 NumNodes=1 NumCPUs=4 "
           "CPUs/Task=1 ")
jobs = {
    "squeue, --mem=8G": slurm.parse_jobs_list_output(0, row, "")[0],
    "qstat, mem=8gb": pbs.parse_jobs_list_output(0, queue, "")[0],
    "scontrol, --mem=8G": slurm.parse_job_output(0, control + "MinMemoryNode=8G", ""),
    "scontrol, --mem-per-cpu=2G": slurm.parse_job_output(0, control + "MinMemoryCPU=2G", ""),
}
for name, job in jobs.items():
    of_cpu, of_job = (value and f"{value / kib:g} GiB" for value in (job.info.memory_per_cpu, job.info.memory))
    print(f"{name}: {job.info.cpus} CPUs, memory_per_cpu {of_cpu}, memory {of_job}")
EOF

cat >expected <<'EOF'
squeue, --mem=8G: 4 CPUs, memory_per_cpu 8 GiB, memory None
qstat, mem=8gb: 4 CPUs, memory_per_cpu 8 GiB, memory None
scontrol, --mem=8G: 4 CPUs, memory_per_cpu None, memory None
scontrol, --mem-per-cpu=2G: 4 CPUs, memory_per_cpu None, memory 2 GiB
EOF
cat seen
diff expected seen
