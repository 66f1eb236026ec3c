#!/bin/sh
# Epilog of Slurm: removes the job from the files that gpu_prolog.sh wrote, whatever GPUs it had.
# An epilog that fails drains the node, so this one exits with status 0.

DIRECTORY=/run/batchjob-gpus
[ -r /etc/default/batchjob_gpu_prolog ] && . /etc/default/batchjob_gpu_prolog

umask 022
[ -n "$SLURM_JOB_ID" ] && [ -d "$DIRECTORY" ] || exit 0
(
    flock -w 10 9
    for file in "$DIRECTORY"/*; do
        grep -qsx -- "$SLURM_JOB_ID" "$file" && sed -i "/^$SLURM_JOB_ID\$/d" "$file"
    done
) 9>"$DIRECTORY.lock"
exit 0
