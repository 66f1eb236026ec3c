#!/bin/sh
# Prolog of Slurm: records the GPUs allocated to the job, for `batchjob_exporter
# --collector.gpu.job-files=/run/batchjob-gpus` and `dcgm-exporter --hpc-job-mapping-dir`.
# One file for each GPU, with one job id per line. gpu_epilog.sh removes the job again.
#
# slurm.conf:   PrologFlags=Alloc
#               Prolog=/usr/libexec/batchjob/gpu_prolog.sh
#               Epilog=/usr/libexec/batchjob/gpu_epilog.sh
#
# slurmd sets SLURM_JOB_ID, SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES for both ("Prolog and Epilog Guide",
# slurm.schedmd.com/prolog_epilog.html). A prolog that fails drains the node and holds the job, so this
# one prints errors to standard error and exits with status 0.
#
# Settings in /etc/default/batchjob_gpu_prolog:
#   DIRECTORY=/run/batchjob-gpus
#   NUMBERS=minor        Slurm counts device files (File=/dev/nvidia[0-3] in gres.conf), not NVML's indexes

DIRECTORY=/run/batchjob-gpus
NUMBERS=index
NVIDIA=/proc/driver/nvidia/gpus
[ -r /etc/default/batchjob_gpu_prolog ] && . /etc/default/batchjob_gpu_prolog

# NVML index of a minor number: indexes are in the order of PCI addresses, as are these directories.
index_of() {
    index=0
    for gpu in "$NVIDIA"/*/information; do
        [ "$(sed -n 's/^Device Minor:[[:space:]]*//p' "$gpu")" = "$1" ] && echo "$index"
        index=$((index + 1))
    done
}

gpus() {
    case $CUDA_VISIBLE_DEVICES in
        *GPU-* | *MIG-*) names=$CUDA_VISIBLE_DEVICES ;; # by UUID; with MIG, numbers count instances
        *) names=$SLURM_JOB_GPUS ;;
    esac
    for name in $(echo "$names" | tr ',' ' '); do
        case $name in
            *[!0-9]*) echo "$name" ;;
            *) if [ "$NUMBERS" = minor ]; then index_of "$name"; else echo "$name"; fi ;;
        esac
    done
}

umask 022
[ -n "$SLURM_JOB_ID" ] && [ -n "$SLURM_JOB_GPUS" ] || exit 0
mkdir -p "$DIRECTORY" && (
    flock -w 10 9 # epilogs of other jobs rewrite the same files
    for gpu in $(gpus); do
        case $gpu in
            */* | .*) continue ;;
        esac
        grep -qsx -- "$SLURM_JOB_ID" "$DIRECTORY/$gpu" || echo "$SLURM_JOB_ID" >>"$DIRECTORY/$gpu"
    done
) 9>"$DIRECTORY.lock"
exit 0
