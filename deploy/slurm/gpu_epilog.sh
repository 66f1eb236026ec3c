#!/bin/sh
# Epilog of Slurm: takes the job out of the files that gpu_prolog.sh wrote, whichever GPUs it had.
# An epilog that fails drains the node: this one ends with 0.

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
