#!/bin/sh
# TaskEpilog of Slurm: adds what this node's exporter knows of a batch job to the job's output.
# An epilog knows neither the other nodes nor the final figures; the added lines say so.
#
#   slurm.conf: TaskEpilog=/usr/libexec/batchjob/report_epilog.sh
#
# slurmstepd runs it as the job's user after each task of each step, with /dev/null as its output
# (src/slurmd/slurmstepd/mgr.c). The batch script is the task without a step. Whatever fails, the job
# ends as it would have: this script always exits with status 0.
[ -n "${SLURM_JOB_ID:-}" ] && [ -z "${SLURM_STEP_ID:-}" ] || exit 0
job=$SLURM_JOB_ID
[ -n "${SLURM_ARRAY_TASK_ID:-}" ] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
output=$(timeout 5 scontrol show job "$job" 2>/dev/null | sed -n 's/^ *StdOut=//p')
[ -f "$output" ] || exit 0
timeout 10 "${BATCHJOB:-/usr/bin/batchjob}" epilog "$SLURM_JOB_ID" >>"$output" 2>/dev/null
exit 0
