"""Records passes as fast as it can and prints each number: a process to be killed.

python -m tests.batchjob_stats_db.samples.endless_recorder DIRECTORY FIRST_PASS
"""

import itertools
import sys
from functools import partial
from pathlib import Path

from batchjob.quantities.reading import CgroupReading, job_reading
from batchjob_stats_db.samples import recorder
from collectors.job_samples import take_samples
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS

T = 1_775_300_000.0
JOBS = ("1", "2[1].pbs01", "7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa")


def main() -> None:
    directory, first_pass = Path(sys.argv[1]), int(sys.argv[2])
    recorder.LONGEST_FILE = 1500  # so that files are closed and repacked all the time
    names = [JobName("slurm", jobid, "alice", NO_LABELS) for jobid in JOBS]
    moment = T + 5.0 * first_pass

    def readings():
        cgroup = CgroupReading(cpu_user_seconds=moment - T, cpu_system_seconds=0.0)
        reading = job_reading(T, None, cgroup)
        return [(name, reading) for name in names]

    endless_recorder = recorder.Recorder(
        partial(take_samples, readings),
        directory,
        recorder.RecorderOptions(),
        lambda: moment,
        lambda: moment,
    )
    for pass_number in itertools.count(first_pass):
        moment = T + 5.0 * pass_number
        endless_recorder.record()
        print(pass_number, flush=True)


if __name__ == "__main__":
    main()
