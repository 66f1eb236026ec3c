"""Records passes as fast as it can, and says of each when it is done: to be killed at it.

python -m tests.batchjob_stats_db.samples.endless_recorder DIRECTORY FIRST_PASS
"""

import itertools
import sys
from functools import partial
from pathlib import Path

from batchjob.quantities.reading import CgroupReading, job_reading
from batchjob_stats_db.samples import recorder
from collectors.job_samples import SampleSources, take_samples
from collectors.jobs.view import JobName
from collectors.metric import NO_LABELS

T = 1_775_300_000.0
JOBS = ("1", "2[1].pbs01", "7b1e6a3c-0d5f-4a4e-9a55-0d7f43a3c1aa")


def main() -> None:
    directory, number = Path(sys.argv[1]), int(sys.argv[2])
    recorder.LONGEST_FILE = 1500  # so that files end and are packed again all the time
    names = [JobName("slurm", jobid, "alice", NO_LABELS) for jobid in JOBS]
    moment = T + 5.0 * number

    def readings():
        cgroup = CgroupReading(cpu_user_seconds=moment - T, cpu_system_seconds=0.0)
        reading = job_reading(T, None, cgroup)
        return [(name, reading) for name in names]

    made = recorder.Recorder(
        partial(take_samples, SampleSources(readings)),
        directory,
        recorder.RecorderOptions(),
        lambda: moment,
        lambda: moment,
    )
    for each in itertools.count(number):
        moment = T + 5.0 * each
        made.record()
        print(each, flush=True)


if __name__ == "__main__":
    main()
